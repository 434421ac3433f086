#include "proof/follow.hpp"

#include "proof/hash.hpp"
#include "proof/in_order.hpp"

namespace allfold::proof {

void follow(const int64_t* when, int64_t rows, const Accesses& sources, const Accesses& destinations, const Held& held,
            const Found& found) {
    for (int64_t row : in_order(when, rows).items) {
        const int64_t begin = sources.starts[row], end = sources.starts[row + 1];
        int64_t place = sources.rank[begin] * held.slots + sources.slot[begin];
        const int32_t datum = held.datum[place];
        uint64_t bits = held.bits[place];
        int32_t count = held.count[place];
        bool mixed = false;
        for (int64_t i = begin + 1; i < end; ++i) {
            place = sources.rank[i] * held.slots + sources.slot[i];
            mixed |= held.datum[place] != datum;
            bits = combined(bits, held.bits[place]);
            count += held.count[place];
        }
        if (end - begin > 1) bits = rounded(bits);
        found.datum[row] = datum;
        found.count[row] = count;
        found.mixed[row] = mixed;
        for (int64_t i = destinations.starts[row]; i < destinations.starts[row + 1]; ++i) {
            place = destinations.rank[i] * held.slots + destinations.slot[i];
            held.datum[place] = datum;
            held.bits[place] = bits;
            held.count[place] = count;
        }
    }
}

}  // namespace allfold::proof
