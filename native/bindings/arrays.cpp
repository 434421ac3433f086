#include "bindings/arrays.hpp"

#include "bindings/gil.hpp"

#include <cstring>
#include <string>
#include <utility>

namespace allfold {

namespace {

// The format characters of the struct module. Sizes of int and long come with the buffer.
std::optional<DType> from_format(const char* format, size_t size) {
    if (!format) return DType::uint8;
    if (*format == '@' || *format == '=' || *format == '<') ++format;
    auto integer = [&](bool is_signed) -> std::optional<DType> {
        switch (size) {
            case 1: return is_signed ? DType::int8 : DType::uint8;
            case 2: return is_signed ? DType::int16 : DType::uint16;
            case 4: return is_signed ? DType::int32 : DType::uint32;
            case 8: return is_signed ? DType::int64 : DType::uint64;
        }
        return std::nullopt;
    };
    if (!std::strcmp(format, "Zf")) return DType::complex64;
    if (!std::strcmp(format, "Zd")) return DType::complex128;
    if (format[0] == 0 || format[1] != 0) return std::nullopt;
    switch (format[0]) {
        case '?': return DType::boolean;
        case 'b':
        case 'h':
        case 'i':
        case 'l':
        case 'q':
        case 'n': return integer(true);
        case 'B':
        case 'H':
        case 'I':
        case 'L':
        case 'Q':
        case 'N':
        case 'c': return integer(false);
        case 'e': return DType::float16;
        case 'f': return DType::float32;
        case 'd': return DType::float64;
    }
    return std::nullopt;
}

std::string known_dtypes() {
    std::string text;
    for (size_t i = 0; i < dtype_count; ++i) text += (i ? ", " : "") + std::string(name_of(static_cast<DType>(i)));
    return text;
}

std::optional<DType> from_dlpack(nb::dlpack::dtype type) {
    if (type.lanes != 1) return std::nullopt;
    using Code = nb::dlpack::dtype_code;
    switch (static_cast<Code>(type.code)) {
        case Code::Bool: return DType::boolean;
        case Code::Bfloat: return DType::bfloat16;
        case Code::Int:
            switch (type.bits) {
                case 8: return DType::int8;
                case 16: return DType::int16;
                case 32: return DType::int32;
                case 64: return DType::int64;
            }
            break;
        case Code::UInt:
            switch (type.bits) {
                case 8: return DType::uint8;
                case 16: return DType::uint16;
                case 32: return DType::uint32;
                case 64: return DType::uint64;
            }
            break;
        case Code::Float:
            switch (type.bits) {
                case 16: return DType::float16;
                case 32: return DType::float32;
                case 64: return DType::float64;
            }
            break;
        case Code::Complex:
            switch (type.bits) {
                case 64: return DType::complex64;
                case 128: return DType::complex128;
            }
            break;
        default: break;
    }
    return std::nullopt;
}

// DLPack's table for a fast exchange, as in its header; version 1, any minor version.
struct Exchange {
    uint32_t major, minor;
    const Exchange* older;
    void *allocate, *from_object, *to_object;
    int (*borrow)(void* object, nb::dlpack::dltensor* out);
};

// How tensors of exactly this type (not of a derived one) are borrowed; null if they cannot be. The last type is
// cached.
decltype(Exchange::borrow) exchange_of(PyTypeObject* type) {
    static PyTypeObject* last = nullptr;
    static decltype(Exchange::borrow) found = nullptr;
    if (type == last) return found;
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    Py_XDECREF(reinterpret_cast<PyObject*>(last));
    last = type;
    found = nullptr;
    // What the type itself has, in the functions of Python's stable ABI.
    nb::object own = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dict__")), capsule;
    if (own.is_valid()) capsule = nb::steal(PyMapping_GetItemString(own.ptr(), "__dlpack_c_exchange_api__"));
    PyErr_Clear();
    if (capsule.is_valid() && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) {
        auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        while (table && table->major > 1) table = table->older;
        if (table && table->major == 1) found = table->borrow;
    }
    return found;
}

// A masked array's buffer is its data, without the mask. The last type that is no such array is cached.
bool is_masked(nb::handle object) {
    static PyTypeObject* plain = nullptr;
    PyTypeObject* type = Py_TYPE(object.ptr());
    if (type == plain) return false;
    if (PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), "harden_mask")) return true;
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    Py_XDECREF(reinterpret_cast<PyObject*>(plain));
    plain = type;
    return false;
}

std::string text_of(nb::handle object, const char* attribute) {
    nb::object value = nb::getattr(object, attribute, nb::none());
    return value.is_none() ? "" : nb::str(value).c_str();
}

[[noreturn]] void refuse_dtype(nb::handle object, const char* format) {
    std::string type = text_of(object, "dtype");
    if (type.empty() && format) type = std::string("format ") + format;
    throw nb::type_error(("unsupported element type (" + type + "); known: " + known_dtypes()).c_str());
}

// Says why an object is no array that can be used, and what to pass in its place.
std::string refusal(nb::handle object) {
    if (text_of(object, "is_meta") == "True") return "the tensor is on the meta device, and has no data";
    std::string layout = text_of(object, "layout");
    if (layout.starts_with("torch.") && layout != "torch.strided")
        return "the tensor is sparse (" + layout + "); pass tensor.to_dense()";
    std::string device = text_of(object, "device"), type = nb::inst_name(object).c_str();
    if (!layout.empty() && device.starts_with("cpu")) refuse_dtype(object, nullptr);
    std::string said = "expected an array that speaks the buffer protocol or DLPack, got " + type;
    bool is_sequence = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
    return is_sequence ? said + ", which is not changed in place; pass x = numpy.array(…)" : said;
}

// The capsule of an object that makes one by a function of its own; otherwise, or if that refuses, the object itself,
// for which nanobind has other ways. nanobind would call the function too, but drops all its exceptions, even an
// interrupt. Types with DLPack's table, such as torch's, are left to nanobind: their tensors with gradients refuse, and
// asking them once more would cost much of a small call.
nb::object exported(nb::handle object) {
    static PyTypeObject* other = nullptr;  // the last type that is left to nanobind
    static PyObject* const method = PyUnicode_InternFromString("__dlpack__");
    static PyObject* const names = Py_BuildValue("(s)", "max_version");
    static PyObject* const newest = Py_BuildValue("(ii)", 1, 0);
    PyTypeObject* type = Py_TYPE(object.ptr());
    if (type == other) return nb::borrow(object);
    auto has = [&](const char* name) { return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), name); };
    if (!has("__dlpack__") || has("__dlpack_c_exchange_api__")) {
        Py_INCREF(reinterpret_cast<PyObject*>(type));
        Py_XDECREF(reinterpret_cast<PyObject*>(other));
        other = type;
        return nb::borrow(object);
    }
    PyObject* arguments[] = {object.ptr(), newest};
    nb::object capsule = nb::steal(in_python([&] { return PyObject_VectorcallMethod(method, arguments, 1, names); }));
    if (capsule.is_valid()) return capsule;
    drop_error();
    return nb::borrow(object);
}

// What was read from a tensor before this call is outdated: torch's backward then refuses it, as after any operation in
// place. Objects that are not torch's have no such flag.
void mark_as_changed(nb::handle object) {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");  // made once: every call comes here
    nb::object flag = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!flag.is_valid()) PyErr_Clear();
    if (flag.ptr() == Py_True) nb::module_::import_("torch.autograd.graph").attr("increment_version")(object);
}

}  // namespace

// Delegates, so that the destructor releases the buffer if something below throws.
Array::Array(nb::handle object, bool writable, std::optional<DType> as) : Array() {
    if (PyObject_CheckBuffer(object.ptr())) {
        // Request strides, not contiguity: an array that is not contiguous must be distinguished from one that cannot
        // be used at all, and NumPy raises ValueError for both.
        if (in_python([&] { return PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES); }) != 0) {
            nb::python_error error;  // NumPy has no format for dates, and says so in its own words
            if (!error.matches(PyExc_ValueError) || text_of(object, "dtype").empty()) throw error;
            refuse_dtype(object, nullptr);
        }
        held_ = true;
        if (is_masked(object))
            throw nb::type_error(
                "a masked array's mask would be ignored; pass x.filled(…), or x.data for all elements");
        if (writable && view_.readonly)
            throw nb::type_error(view_.ndim ? "the array for the result is read-only"
                                            : "a NumPy scalar is not changed in place; pass x = numpy.array(…)");
        if (!PyBuffer_IsContiguous(&view_, 'C')) {
            PyErr_SetString(PyExc_BufferError, "the array is not contiguous");
            throw nb::python_error();
        }
        data = view_.buf;
        auto size = static_cast<size_t>(view_.itemsize);
        elements = size ? static_cast<size_t>(view_.len) / size : 0;
        auto found = from_format(view_.format, size);
        if (!found) refuse_dtype(object, view_.format);
        set_dtype(*found, as);
    } else {
        if (!nb::try_cast(exported(object), tensor_) || !tensor_.is_valid())
            throw nb::type_error(refusal(object).c_str());
        if (!from_dlpack(tensor_.dtype())) refuse_dtype(object, "of DLPack");
        auto* shape = const_cast<int64_t*>(tensor_.shape_ptr());
        auto* strides = const_cast<int64_t*>(tensor_.stride_ptr());
        take({tensor_.data(),
              {tensor_.device_type(), tensor_.device_id()},
              static_cast<int32_t>(tensor_.ndim()),
              tensor_.dtype(),
              shape,
              strides,
              0},
             as);
        if (writable && !PyCapsule_CheckExact(object.ptr())) mark_as_changed(object);
    }
}

Array Array::vouched(nb::handle object, bool writable, std::optional<DType> as) {
    auto* borrow = exchange_of(Py_TYPE(object.ptr()));
    if (!borrow) return Array(object, writable, as);
    nb::dlpack::dltensor tensor;
    if (borrow(object.ptr(), &tensor) != 0) throw nb::python_error();
    Array array;
    array.take(tensor, as);
    return array;
}

void Array::take(const nb::dlpack::dltensor& tensor, std::optional<DType> as) {
    if (tensor.device.device_type != nb::device::cpu::value)
        throw nb::type_error("the array is not in this machine's memory; move it there first (torch: tensor.cpu())");
    elements = 1;
    for (int32_t i = 0; i < tensor.ndim; ++i) elements *= static_cast<size_t>(tensor.shape[i]);
    int64_t stride = 1;
    for (int32_t i = tensor.ndim; i-- > 0 && tensor.strides && elements > 0;) {
        if (tensor.shape[i] != 1 && tensor.strides[i] != stride) {
            PyErr_SetString(PyExc_BufferError, "the array is not contiguous");
            throw nb::python_error();
        }
        stride *= tensor.shape[i];
    }
    data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    auto found = from_dlpack(tensor.dtype);
    if (!found) throw nb::type_error(("unsupported element type; known: " + known_dtypes()).c_str());
    set_dtype(*found, as);
}

void Array::set_dtype(DType found, std::optional<DType> as) {
    dtype = as.value_or(found);
    // NumPy stores bfloat16 as uint16. Any other type would be misread.
    bool carried = dtype == DType::bfloat16 && found == DType::uint16;
    if (dtype != found && !carried)
        throw nb::type_error((std::string("the array is ") + name_of(found) + ", not " + name_of(dtype)).c_str());
}

Array::Array(Array&& other) noexcept { *this = std::move(other); }

Array& Array::operator=(Array&& other) noexcept {
    std::swap(data, other.data);
    std::swap(elements, other.elements);
    std::swap(dtype, other.dtype);
    std::swap(view_, other.view_);
    std::swap(held_, other.held_);
    std::swap(tensor_, other.tensor_);
    return *this;
}

Array::~Array() {
    if (held_) PyBuffer_Release(&view_);
}

bool overlap(const Array& one, const Array& other) {
    auto begin = [](const Array& array) { return reinterpret_cast<uintptr_t>(array.data); };
    auto end = [&](const Array& array) { return begin(array) + array.elements * size_of(array.dtype); };
    return begin(one) < end(other) && begin(other) < end(one);
}

void refuse_arguments(const char* name) {
    auto usage = [&](const char* why) { return EngineError(Fault::usage, std::string(name) + ": " + why); };
    try {
        throw;
    } catch (const nb::builtin_exception& error) {
        throw usage(error.what());
    } catch (const nb::python_error& error) {
        if (is_interrupt(error)) throw;
        if (error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError))
            throw usage(nb::str(error.value()).c_str());
        if (!error.matches(PyExc_BufferError)) throw;
        nb::object unfit = nb::module_::import_("allfold.engines.engine").attr("UnfitArray");
        PyErr_SetObject(unfit.ptr(), error.value().attr("args").ptr());
        throw nb::python_error();
    }
}

DType dtype_named(nb::handle given) {
    if (!PyUnicode_Check(given.ptr()))
        throw nb::type_error((std::string("dtype is the name of a type, not ") + shown(given)).c_str());
    const char* name = nb::cast<const char*>(given);
    for (size_t i = 0; i < dtype_count; ++i)
        if (!std::strcmp(name, name_of(static_cast<DType>(i)))) return static_cast<DType>(i);
    throw nb::value_error((std::string("unknown dtype ") + name).c_str());
}

}  // namespace allfold
