// Every fold kernel of every instruction set this machine has, bit for bit against a scalar fold written here
// independently. Exit status 0 if all agree, 1 if not. `kernels_test every` tries all combinations.
#include "kernels/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

using namespace allfold;

namespace {

using Bytes = std::vector<uint8_t>;

int failures = 0;

template <class... Arguments>
void fail(const char* format, Arguments... arguments) {
    if (++failures > 20) return;
    std::fprintf(stderr, format, arguments...);
    std::fputc('\n', stderr);
}

// ---- the 16-bit formats, by arithmetic instead of by bits ----

template <int exponent_bits, int fraction_bits>
struct Half {
    static constexpr int least_exponent = 2 - (1 << (exponent_bits - 1));
    static constexpr uint16_t infinity = ((1 << exponent_bits) - 1) << fraction_bits;
    uint16_t bits;

    operator float() const {
        const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
        const int fraction = bits & ((1 << fraction_bits) - 1);
        double magnitude;
        if ((bits & 0x7fff) > infinity)
            magnitude = std::nan("");
        else if ((bits & 0x7fff) == infinity)
            magnitude = INFINITY;
        else if (exponent == 0)
            magnitude = std::ldexp(fraction, least_exponent - fraction_bits);
        else
            magnitude = std::ldexp(fraction + (1 << fraction_bits), exponent - 1 + least_exponent - fraction_bits);
        return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
    }

    static Half round(float value) {
        const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
        if (std::isnan(value)) return {static_cast<uint16_t>(sign | infinity | 1)};
        if (std::isinf(value)) return {static_cast<uint16_t>(sign | infinity)};
        const double magnitude = std::fabs(static_cast<double>(value));
        const int exponent = magnitude == 0 ? least_exponent : std::max(std::ilogb(magnitude), least_exponent);
        // How many units in the last place; nearbyint takes ties to even. Counted up from zero, the units of all
        // exponents are exactly the bit patterns in order, up to and including infinity.
        const double units = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
        const long pattern = static_cast<long>(units) + (static_cast<long>(exponent - least_exponent) << fraction_bits);
        return {static_cast<uint16_t>(sign | std::min<long>(pattern, infinity))};
    }
};
using Float16 = Half<5, 10>;
using BFloat16 = Half<8, 7>;

struct Boolean {
    uint8_t byte;
};

template <class T>
constexpr bool is_half = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <class T>
constexpr bool is_complex_type = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

// ---- the reference: one element, two operands at a time ----

template <class T>
T least(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return NAN;
        if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
}

template <class T>
T greatest(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(a) || std::isnan(b)) return NAN;
        if (a == b) return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
}

bool combine(Op op, bool a, bool b) {
    switch (op) {
        case Op::sum:
        case Op::max:
        case Op::bor: return a || b;
        case Op::bxor: return a != b;
        default: return a && b;
    }
}

template <class T>
T combine(Op op, T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using Wide = unsigned __int128;
        switch (op) {
            case Op::sum: return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
            case Op::product: return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
            case Op::band: return a & b;
            case Op::bor: return a | b;
            case Op::bxor: return a ^ b;
            case Op::min: return least(a, b);
            default: return greatest(a, b);
        }
    } else if constexpr (is_complex_type<T>) {
        using Part = typename T::value_type;
        if (op != Op::product) return {a.real() + b.real(), a.imag() + b.imag()};
        // volatile: never a fused multiply-add
        const volatile Part ac = a.real() * b.real(), bd = a.imag() * b.imag();
        const volatile Part ad = a.real() * b.imag(), bc = a.imag() * b.real();
        return {ac - bd, ad + bc};
    } else {
        switch (op) {
            case Op::product: return a * b;
            case Op::min: return least(a, b);
            case Op::max: return greatest(a, b);
            default: return a + b;
        }
    }
}

template <class T>
auto widen(T value) {
    if constexpr (std::is_same_v<T, Boolean>)
        return value.byte != 0;
    else if constexpr (is_half<T>)
        return static_cast<float>(value);
    else
        return value;
}

template <class T, class Wide>
T narrow(Wide value) {
    if constexpr (std::is_same_v<T, Boolean>)
        return {static_cast<uint8_t>(value)};
    else if constexpr (is_half<T>)
        return T::round(value);
    else
        return value;
}

template <class Wide>
Wide divide(Wide value, uint32_t divisor) {
    if constexpr (is_complex_type<Wide>) {
        const auto by = static_cast<typename Wide::value_type>(divisor);
        return {value.real() / by, value.imag() / by};
    } else if constexpr (std::is_floating_point_v<Wide>) {
        return value / static_cast<Wide>(divisor);
    } else {
        return value;
    }
}

template <class T>
T element(const uint8_t* array, size_t i) {
    T value;
    std::memcpy(&value, array + i * sizeof(T), sizeof(T));
    return value;
}

template <class T>
void reference(Op op, const std::vector<const uint8_t*>& sources, size_t elements, uint32_t divisor, uint8_t* result) {
    for (size_t i = 0; i < elements; ++i) {
        T rounded = element<T>(sources[0], i);
        if (sources.size() > 1 || divisor > 1) {
            auto value = widen(rounded);
            for (size_t s = 1; s < sources.size(); ++s) value = combine(op, value, widen(element<T>(sources[s], i)));
            if (divisor > 1) value = divide(value, divisor);
            rounded = narrow<T>(value);
        }
        std::memcpy(result + i * sizeof(T), &rounded, sizeof(T));
    }
}

// Calls `body` with a value of the type that represents a dtype in this test.
template <class Body>
void with_type(DType dtype, Body body) {
    switch (dtype) {
        case DType::boolean: return body(Boolean{});
        case DType::int8: return body(int8_t{});
        case DType::uint8: return body(uint8_t{});
        case DType::int16: return body(int16_t{});
        case DType::uint16: return body(uint16_t{});
        case DType::int32: return body(int32_t{});
        case DType::uint32: return body(uint32_t{});
        case DType::int64: return body(int64_t{});
        case DType::uint64: return body(uint64_t{});
        case DType::float16: return body(Float16{});
        case DType::bfloat16: return body(BFloat16{});
        case DType::float32: return body(float{});
        case DType::float64: return body(double{});
        case DType::complex64: return body(std::complex<float>{});
        case DType::complex128: return body(std::complex<double>{});
    }
}

// Equal bits, or NaN and NaN.
template <class Part>
bool same(const uint8_t* a, const uint8_t* b, size_t parts) {
    if (parts == 0 || std::memcmp(a, b, parts * sizeof(Part)) == 0) return true;
    for (size_t i = 0; i < parts; ++i) {
        if (std::memcmp(a + i * sizeof(Part), b + i * sizeof(Part), sizeof(Part)) == 0) continue;
        if constexpr (std::is_floating_point_v<Part> || is_half<Part>) {
            const auto of_a = widen(element<Part>(a, i)), of_b = widen(element<Part>(b, i));
            if (std::isnan(of_a) && std::isnan(of_b)) continue;
        }
        return false;
    }
    return true;
}

bool same(DType dtype, const uint8_t* a, const uint8_t* b, size_t elements) {
    bool equal = false;
    with_type(dtype, [&]<class T>(T) {
        if constexpr (is_complex_type<T>)
            equal = same<typename T::value_type>(a, b, 2 * elements);
        else
            equal = same<T>(a, b, elements);
    });
    return equal;
}

// ---- the data: nice numbers (so that sums tie), any bits at all (so that they overflow), and the special ones ----

std::mt19937_64 generator(20240229);

template <class T>
T random_value() {
    const uint64_t bits = generator();
    if constexpr (is_complex_type<T>) {
        const auto real = random_value<typename T::value_type>();
        return {real, random_value<typename T::value_type>()};
    } else if constexpr (std::is_same_v<T, Boolean>) {
        constexpr uint8_t bytes[] = {0, 0, 0, 1, 1, 1, 2, 255};
        return {bytes[bits % 8]};
    } else if constexpr (is_half<T>) {
        if (bits % 2) return {static_cast<uint16_t>(bits >> 16)};
        return T::round(static_cast<float>(random_value<double>()));
    } else if constexpr (std::is_floating_point_v<T>) {
        using Limits = std::numeric_limits<T>;
        constexpr T special[] = {T(0),
                                 T(-0.0),
                                 Limits::infinity(),
                                 -Limits::infinity(),
                                 Limits::quiet_NaN(),
                                 Limits::denorm_min(),
                                 -Limits::min(),
                                 Limits::max()};
        if (bits % 16 == 0) return special[(bits >> 8) % 8];
        if (bits % 16 < 4) return element<T>(reinterpret_cast<const uint8_t*>(&bits), 0);
        return static_cast<T>(static_cast<int64_t>(bits >> 48) - 32768) / static_cast<T>(1 << (bits >> 8) % 16);
    } else {
        return static_cast<T>(bits >> 8);
    }
}

// An array that ends where its allocation ends, so that the address sanitizer sees every byte read past it.
struct Source {
    Source(DType dtype, size_t elements, size_t misalignment)
        : misalignment(misalignment), memory(misalignment + elements * size_of(dtype)) {
        with_type(dtype, [&]<class T>(T) {
            for (size_t i = 0; i < elements; ++i) {
                const T value = random_value<T>();
                std::memcpy(memory.data() + misalignment + i * sizeof(T), &value, sizeof(T));
            }
        });
    }
    uint8_t* data() { return memory.data() + misalignment; }
    size_t misalignment;
    Bytes memory;
};

// An array with guards around it.
struct Destination {
    static constexpr size_t guard = 64;
    static constexpr uint8_t untouched = 0xa5;
    Destination(size_t bytes, size_t misalignment) : bytes(bytes), memory(bytes + 4 * guard, untouched) {
        const auto address = reinterpret_cast<uintptr_t>(memory.data()) + guard;
        start = guard + (64 - address % 64) % 64 + misalignment;
    }
    uint8_t* data() { return memory.data() + start; }
    bool guards_intact() const {
        const auto intact = [](uint8_t byte) { return byte == untouched; };
        const auto begin = memory.begin() + static_cast<ptrdiff_t>(start);
        return std::all_of(memory.begin(), begin, intact) &&
               std::all_of(begin + static_cast<ptrdiff_t>(bytes), memory.end(), intact);
    }
    size_t bytes, start;
    Bytes memory;
};

// ---- the grid ----

constexpr size_t element_counts[] = {0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4099};
constexpr size_t source_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
constexpr size_t nothing = ~size_t{0};

struct Setting {
    Isa isa;
    Op op;
    DType dtype;
    uint32_t divisor;
};

// One call; `aliased` is the source that is also the last destination, or nothing.
void check_call(const Setting& setting, const std::vector<const uint8_t*>& sources, size_t elements,
                size_t destination_count, size_t aliased, bool from_memory, const Bytes& expected) {
    static size_t turn = 0;
    const size_t size = size_of(setting.dtype), bytes = elements * size;
    const size_t misalignments[] = {0, 1, size, 64 - size, 37};
    std::vector<Destination> arrays;
    for (size_t d = 0; d < destination_count; ++d) arrays.emplace_back(bytes, misalignments[turn++ % 5]);
    std::vector<const void*> from(sources.begin(), sources.end());
    std::vector<void*> to;
    for (Destination& array : arrays) to.push_back(array.data());
    if (aliased != nothing) {
        if (bytes > 0) std::memcpy(arrays.back().data(), sources[aliased], bytes);
        from[aliased] = arrays.back().data();
    }
    find_fold(setting.op, setting.dtype, setting.isa)(from.data(), from.size(), to.data(), to.size(), elements,
                                                      setting.divisor, from_memory ? from.back() : nullptr);
    for (size_t d = 0; d < destination_count; ++d) {
        if (arrays[d].guards_intact() && same(setting.dtype, arrays[d].data(), expected.data(), elements)) continue;
        fail("%s %s %s: %zu sources, destination %zu of %zu, %zu elements, divisor %u, aliased %zd, from memory %d: %s",
             name_of(setting.isa), name_of(setting.op), name_of(setting.dtype), sources.size(), d, destination_count,
             elements, setting.divisor, static_cast<ssize_t>(aliased), from_memory,
             arrays[d].guards_intact() ? "wrong result" : "wrote outside the array");
    }
}

// `every` aliased source with every number of destinations, near and far; or one of seven of these. As there are six
// for each source, another one has its turn at every length.
void check_grid(Op op, DType dtype, bool every) {
    size_t turn = 0;
    for (const size_t elements : element_counts) {
        std::vector<Source> arrays;
        for (size_t s = 0; s < 16; ++s) arrays.emplace_back(dtype, elements, (7 * s + 1) % 64);
        for (const size_t source_count : source_counts) {
            std::vector<const uint8_t*> sources;
            for (size_t s = 0; s < source_count; ++s) sources.push_back(arrays[s].data());
            std::vector<uint32_t> divisors = {1};
            if (op == Op::average) divisors = {0, 7, 8, static_cast<uint32_t>(source_count)};
            for (const uint32_t divisor : divisors) {
                Bytes expected(elements * size_of(dtype));
                with_type(dtype, [&]<class T>(T) { reference<T>(op, sources, elements, divisor, expected.data()); });
                for (const Isa isa : all_isas) {
                    if (!available(isa)) continue;
                    const Setting setting = {isa, op, dtype, divisor};
                    for (size_t destination_count = 1; destination_count <= 3; ++destination_count)
                        for (const bool from_memory : {false, true}) {
                            check_call(setting, sources, elements, destination_count, nothing, from_memory, expected);
                            for (size_t aliased = 0; aliased < source_count; ++aliased)
                                if (every || turn++ % 7 == 0)
                                    check_call(setting, sources, elements, destination_count, aliased, from_memory,
                                               expected);
                        }
                }
            }
        }
    }
}

void check_copy() {
    for (const Isa isa : all_isas) {
        if (!available(isa)) continue;
        for (const size_t bytes : element_counts)
            for (size_t destination_count = 1; destination_count <= 3; ++destination_count)
                for (const bool from_memory : {false, true}) {
                    Source source(DType::uint8, bytes, 3);
                    std::vector<Destination> arrays;
                    for (size_t d = 0; d < destination_count; ++d) arrays.emplace_back(bytes, 5 * d);
                    std::vector<void*> to;
                    for (Destination& array : arrays) to.push_back(array.data());
                    find_copy(isa)(source.data(), to.data(), to.size(), bytes, from_memory);
                    for (Destination& array : arrays)
                        if (!array.guards_intact() || !same(DType::uint8, array.data(), source.data(), bytes))
                            fail("%s copy: %zu bytes to %zu, from memory %d: wrong", name_of(isa), bytes,
                                 destination_count, from_memory);
                }
    }
}

// ---- what the definitions say, in numbers written down by hand ----

template <class T>
void check_fold(Op op, DType dtype, const std::vector<T>& operands, T expected, uint32_t divisor = 1) {
    for (const Isa isa : all_isas) {
        if (!available(isa)) continue;
        // Enough elements for whole blocks and for single elements at the end.
        constexpr size_t repeats = 133;
        std::vector<std::vector<T>> arrays;
        std::vector<const void*> sources;
        for (const T& operand : operands) sources.push_back(arrays.emplace_back(repeats, operand).data());
        std::vector<T> result(repeats);
        void* destination = result.data();
        find_fold(op, dtype, isa)(sources.data(), sources.size(), &destination, 1, repeats, divisor, nullptr);
        for (const T& value : result)
            if (!same(dtype, reinterpret_cast<const uint8_t*>(&value), reinterpret_cast<const uint8_t*>(&expected),
                      1)) {
                fail("%s %s %s: not the value that is defined (case with divisor %u)", name_of(isa), name_of(op),
                     name_of(dtype), divisor);
                break;
            }
    }
}

void check_definitions() {
    using std::vector;
    constexpr float infinity = INFINITY, nan = NAN;
    check_fold<float>(Op::min, DType::float32, {0.0f, -0.0f}, -0.0f);
    check_fold<float>(Op::min, DType::float32, {-0.0f, 0.0f}, -0.0f);
    check_fold<float>(Op::max, DType::float32, {0.0f, -0.0f}, 0.0f);
    check_fold<float>(Op::max, DType::float32, {-0.0f, 0.0f}, 0.0f);
    for (const Op op : {Op::min, Op::max, Op::sum, Op::product}) {
        check_fold<float>(op, DType::float32, {nan, 1.0f, 2.0f}, nan);
        check_fold<float>(op, DType::float32, {1.0f, 2.0f, nan}, nan);
        check_fold<float>(op, DType::float32, {1.0f, nan, -infinity}, nan);
        check_fold<Float16>(op, DType::float16, {{0x3c00}, {0x7c01}, {0xfc00}}, {0x7e00});
        check_fold<Float16>(op, DType::float16, {{0x3c00}, {0xffff}}, {0x7e00});
        check_fold<BFloat16>(op, DType::bfloat16, {{0x3f80}, {0x7f81}, {0xff80}}, {0x7fc0});
        check_fold<BFloat16>(op, DType::bfloat16, {{0x7fff}, {0x3f80}, {0x3f80}}, {0x7fc0});
        check_fold<BFloat16>(op, DType::bfloat16, {{0xffff}, {0x0001}}, {0x7fc0});
    }
    check_fold<float>(Op::sum, DType::float32, {infinity, -infinity}, nan);
    check_fold<float>(Op::sum, DType::float32, {1e38f, 1e38f, 1e38f, 1e38f}, infinity);
    check_fold<float>(Op::sum, DType::float32, {1.0f, 1e8f, -1e8f}, 0.0f);  // left to right
    check_fold<float>(Op::average, DType::float32, {1.0f, 0.0f, 0.0f}, 1.0f / 3.0f, 3);
    check_fold<int8_t>(Op::sum, DType::int8, {127, 1}, -128);
    check_fold<int32_t>(Op::product, DType::int32, {1 << 30, 4}, 0);
    check_fold<int64_t>(Op::product, DType::int64, {INT64_MIN, -1}, INT64_MIN);
    check_fold<Boolean>(Op::sum, DType::boolean, {{2}, {0}, {255}}, {1});
    check_fold<Boolean>(Op::band, DType::boolean, {{1}, {2}}, {1});
    check_fold<Boolean>(Op::bxor, DType::boolean, {{4}, {1}}, {0});
    // (infinity + 0i)(1 + 0i), by the plain formula: 0 · infinity is NaN
    check_fold<std::complex<float>>(Op::product, DType::complex64, {{infinity, 0.0f}, {1.0f, 0.0f}}, {infinity, nan});
    check_fold<std::complex<double>>(Op::product, DType::complex128, {{1, 2}, {3, -4}, {0, 1}}, {-2, 11});

    // Ties to even, overflow, subnormals; float32 accumulation, rounded once at the end.
    check_fold<Float16>(Op::sum, DType::float16, {{0x6800}, {0x3c00}}, {0x6800});            // 2048 + 1 → 2048
    check_fold<Float16>(Op::sum, DType::float16, {{0x6801}, {0x3c00}}, {0x6802});            // 2050 + 1 → 2052
    check_fold<Float16>(Op::sum, DType::float16, {{0x6800}, {0x3c00}, {0x3c00}}, {0x6801});  // 2048 + 1 + 1 → 2050
    check_fold<Float16>(Op::sum, DType::float16, {{0x7bff}, {0x4c00}}, {0x7c00});            // 65504 + 16 → infinity
    check_fold<Float16>(Op::sum, DType::float16, {{0x7bff}, {0x4bff}}, {0x7bff});            // 65504 + 15.99 → 65504
    check_fold<Float16>(Op::sum, DType::float16, {{0xfbff}, {0xfbff}, {0x7bff}}, {0xfbff});  // overflow only at the end
    check_fold<Float16>(Op::product, DType::float16, {{0x0001}, {0x3800}}, {0x0000});        // half the smallest → 0
    check_fold<Float16>(Op::product, DType::float16, {{0x8003}, {0x3800}}, {0x8002});  // −1.5 of the smallest → −2
    check_fold<Float16>(Op::sum, DType::float16, {{0x03ff}, {0x0001}}, {0x0400});      // subnormal → normal
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x4380}, {0x3f80}}, {0x4380});    // 256 + 1 → 256
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x4381}, {0x3f80}}, {0x4382});    // 258 + 1 → 260
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x4380}, {0x3f80}, {0x3f80}}, {0x4381});  // 256 + 1 + 1 → 258
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x7f7f}, {0x7f7f}}, {0x7f80});            // overflow
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x7f7f}, {0x7b00}}, {0x7f80});            // a tie that overflows
    check_fold<BFloat16>(Op::sum, DType::bfloat16, {{0x0001}, {0x0001}}, {0x0002});            // subnormal
    check_fold<BFloat16>(Op::product, DType::bfloat16, {{0x0003}, {0x3f00}}, {0x0002});  // 1.5 of the smallest → 2

    // Adding minus zero changes no number: this tests both conversions, for every number there is.
    for (const DType dtype : {DType::float16, DType::bfloat16})
        for (const Isa isa : all_isas) {
            if (!available(isa)) continue;
            vector<uint16_t> numbers(65536), zeros(65536, 0x8000), result(65536);
            for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i);
            const void* sources[] = {numbers.data(), zeros.data()};
            void* destination = result.data();
            find_fold(Op::sum, dtype, isa)(sources, 2, &destination, 1, numbers.size(), 1, nullptr);
            if (!same(dtype, reinterpret_cast<const uint8_t*>(result.data()),
                      reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size()))
                fail("%s %s: a number changes on the way to float32 and back", name_of(isa), name_of(dtype));
        }
}

}  // namespace

int main(int argument_count, char** arguments) {
    const bool every = argument_count > 1 && !std::strcmp(arguments[1], "every");
    check_definitions();
    check_copy();
    for (size_t d = 0; d < dtype_count; ++d)
        for (size_t o = 0; o < op_count; ++o) {
            const auto op = static_cast<Op>(o);
            const auto dtype = static_cast<DType>(d);
            if (supports(op, dtype))
                check_grid(op, dtype, every);
            else if (find_fold(op, dtype))
                fail("%s %s: a kernel where none is defined", name_of(op), name_of(dtype));
        }
    std::printf("kernels: ");
    for (const Isa isa : all_isas)
        if (available(isa)) std::printf("%s%s ", name_of(isa), isa == best_isa() ? " (used)" : "");
    std::printf("%d failures\n", failures);
    return failures != 0;
}
