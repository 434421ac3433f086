// A hash of the layout of everything that ranks share.
#include <cstddef>

#include "collectives/communicator.hpp"
#include "messages/channel_parts.hpp"
#include "shared/directory.hpp"
#include "shared/layout.hpp"

namespace allfold {

extern const uint64_t layout_hash = [] {
    // Increment this whenever the same bytes get another meaning.
    constexpr uint64_t meaning = 9;
    constexpr uint64_t numbers[] = {
        meaning,
        sizeof(Counter),
        sizeof(CallRecord),
        offsetof(CallRecord, input),
        offsetof(CallRecord, reach),
        offsetof(CallRecord, begun),
        sizeof(Signature),
        offsetof(Signature, schedule),
        offsetof(Signature, custom),
        offsetof(Signature, root),
        offsetof(Signature, collective),
        offsetof(Signature, counts),
        offsetof(Signature, algorithm),
        offsetof(Signature, op_name),
        sizeof(SharedRecord),
        records_kept,
        most_ranks,
        chains_kept,
        inline_bytes,
        sizeof(Post),
        offsetof(Post, chain),
        offsetof(Post, inline_work),
        offsetof(Post, core),
        offsetof(Post, sleepers),
        offsetof(Post, standing),
        offsetof(Post, last_call),
        offsetof(Post, last_done),
        offsetof(Post, fences_for_all),
        offsetof(Post, probe_word),
        offsetof(Post, waiting_for),
        offsetof(Post, writing),
        offsetof(Post, waiting_until),
        offsetof(Post, start_ticks),
        offsetof(Post, because_of),
        offsetof(Post, detached),
        offsetof(Post, last_words),
        offsetof(Post, shrink),
        offsetof(Post, records),
        sizeof(Entry),
        offsetof(Entry, rank),
        offsetof(Entry, label),
        sizeof(Directory),
        offsetof(Directory, pid_namespace),
        offsetof(Directory, locked),
        offsetof(Directory, identity),
        offsetof(Directory, answers),
        offsetof(Directory, question),
        offsetof(Directory, answer),
        offsetof(Directory, text),
        offsetof(Directory, entries),
        sizeof(Ring),
        offsetof(Ring, offer),
        sizeof(MessageHeader),
        ring_bytes_for(2),
        ring_bytes_for(most_ranks),
        window_bytes,
        small_bytes,
        segment_bytes(1, false),
        segment_bytes(1, true),
        segment_bytes(most_ranks, true),
        dtype_count,
        op_count,
    };
    uint64_t hash = 14695981039346656037u;  // FNV-1a, one number at a time
    for (uint64_t number : numbers) hash = (hash ^ number) * 1099511628211u;
    return hash;
}();

}  // namespace allfold
