#include "bindings/arrays.hpp"

#include "bindings/gil.hpp"
#include "shared/text.hpp"

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

// A tensor of DLPack, with the function that releases it. The rest of it is not read here.
struct Managed {
    uint32_t major, minor;
    void* context;
    void (*release)(Managed*);
};

// DLPack's table for a fast exchange, as in its header; version 1, any minor version.
struct Exchange {
    uint32_t major, minor;
    const Exchange* older;
    void* allocate;
    int (*take)(void* object, Managed** out);
    void* to_object;
    int (*borrow)(void* object, nb::dlpack::dltensor* out);
};

// Facts about a type of arrays. Those of the last array's type are cached.
struct Type {
    PyTypeObject* type = nullptr;
    const Exchange* table = nullptr;  // for objects of exactly this type, not of a derived one
    bool speaks = false;              // has __dlpack__
    bool is_of_torch = false;         // torch's tensors may be views that are conjugated or negated when they are read

    static const Type& of(nb::handle object) {
        static Type last;
        PyTypeObject* type = Py_TYPE(object.ptr());
        if (type == last.type) return last;
        Py_INCREF(reinterpret_cast<PyObject*>(type));
        Py_XDECREF(reinterpret_cast<PyObject*>(last.type));
        auto has = [&](const char* name) {
            return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), name) != 0;
        };
        last = {type, table_of(type), has("__dlpack__"), has("is_conj") && has("is_neg")};
        return last;
    }

  private:
    static const Exchange* table_of(PyTypeObject* type) {
        // An attribute of the type itself, by the functions of Python's stable ABI.
        nb::object own = nb::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dict__")), capsule;
        if (own.is_valid()) capsule = nb::steal(PyMapping_GetItemString(own.ptr(), "__dlpack_c_exchange_api__"));
        PyErr_Clear();
        if (!capsule.is_valid() || !PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
        auto* table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
        while (table && table->major > 1) table = table->older;
        return table && table->major == 1 ? table : nullptr;
    }
};

// A masked array's buffer is its data, without the mask. The last type that is not a masked array is cached.
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
    throw nb::type_error(joined({"unsupported element type (", type, "); known: ", known_dtypes()}).c_str());
}

// Explains why an object cannot be used as an array, and what to pass instead.
std::string refusal(nb::handle object) {
    if (text_of(object, "is_meta") == "True") return "the tensor is on the meta device and has no data";
    if (text_of(object, "is_nested") == "True")
        return "the tensor is nested; pass tensor.values(), its elements in one tensor";
    std::string layout = text_of(object, "layout");
    if (layout.starts_with("torch.") && layout != "torch.strided")
        return joined({"the tensor is sparse (", layout, "); pass tensor.to_dense()"});
    std::string device = text_of(object, "device"), type = nb::inst_name(object).c_str();
    if (!layout.empty() && device.starts_with("cpu")) refuse_dtype(object, nullptr);
    std::string said = "expected an array that speaks the buffer protocol or DLPack, got " + type;
    bool is_sequence = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
    return is_sequence ? said + ", which is not changed in place; pass x = numpy.array(…)" : said;
}

// Objects that are not torch's have no such flag.
bool has_gradient(nb::handle object) {
    static PyObject* const name = PyUnicode_InternFromString("requires_grad");  // once, because every call uses it
    nb::object flag = nb::steal(PyObject_GetAttr(object.ptr(), name));
    if (!flag.is_valid()) drop_error();
    return flag.ptr() == Py_True;
}

// A capsule of DLPack for a tensor. As everywhere, its consumer renames it.
nb::object capsule_of(Managed* tensor) {
    static const char* const name = "dltensor_versioned";
    auto release = [](PyObject* capsule) {
        if (!PyCapsule_IsValid(capsule, name)) return;
        auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
        if (unused->release) unused->release(unused);
    };
    nb::object capsule = nb::steal(PyCapsule_New(tensor, name, release));
    if (!capsule.is_valid()) {
        if (tensor->release) tensor->release(tensor);
        throw nb::python_error();
    }
    return capsule;
}

// A capsule with an object's data; the object itself, if only nanobind may know how to get one; nothing, if the
// object refuses. nanobind would call the same functions, but it drops all their exceptions, even an interrupt.
nb::object exported(nb::handle object) {
    static PyObject* const method = PyUnicode_InternFromString("__dlpack__");
    static PyObject* const names = Py_BuildValue("(s)", "max_version");
    static PyObject* const newest = Py_BuildValue("(ii)", 1, 0);
    const Type type = Type::of(object);
    if (type.table) {  // runs no Python
        Managed* tensor = nullptr;
        if (type.table->take(object.ptr(), &tensor) == 0) return capsule_of(tensor);
        drop_error();
        return {};
    }
    if (!type.speaks) return nb::borrow(object);
    // torch refuses to export tensors with gradients this way. Not trying is much faster than handling its exception.
    if (type.is_of_torch && has_gradient(object)) {
        try {
            return call_python(nb::module_::import_("torch.utils.dlpack").attr("to_dlpack"), object);
        } catch (const nb::python_error& error) {
            if (is_interrupt(error)) throw;
            return {};
        }
    }
    PyObject* arguments[] = {object.ptr(), newest};
    nb::object capsule = nb::steal(in_python([&] { return PyObject_VectorcallMethod(method, arguments, 1, names); }));
    if (capsule.is_valid()) return capsule;
    drop_error();
    return type.is_of_torch ? nb::object() : nb::borrow(object);
}

// Lazily conjugated or negated views: the data in memory are not the values of the tensor.
void refuse_lazy(nb::handle object, DType dtype) {
    static PyObject* const names[] = {PyUnicode_InternFromString("is_neg"), PyUnicode_InternFromString("is_conj")};
    bool is_complex = dtype == DType::complex64 || dtype == DType::complex128;
    for (int i = 0; i < (is_complex ? 2 : 1); ++i) {
        PyObject* arguments[] = {object.ptr()};
        nb::object is =
            nb::steal(in_python([&] { return PyObject_VectorcallMethod(names[i], arguments, 1, nullptr); }));
        if (!is.is_valid()) throw nb::python_error();
        if (!is.is(Py_True)) continue;
        PyErr_SetString(PyExc_BufferError, "the tensor is a lazily conjugated or negated view");
        throw nb::python_error();
    }
}

// Values that were read from a tensor before this call are outdated: torch's backward then rejects them, as after any
// operation in place.
void mark_as_changed(nb::handle object) {
    if (has_gradient(object)) nb::module_::import_("torch.autograd.graph").attr("increment_version")(object);
}

}  // namespace

// Delegates, so that the destructor releases the buffer if something below throws.
Array::Array(nb::handle object, bool writable, std::optional<DType> as, bool vouched) : Array() {
    if (const Exchange* table = vouched ? Type::of(object).table : nullptr) {
        nb::dlpack::dltensor tensor;
        if (table->borrow(object.ptr(), &tensor) != 0) throw nb::python_error();
        take(tensor, as);
    } else if (PyObject_CheckBuffer(object.ptr())) {
        // Request strides, not contiguity: an array that is not contiguous must be distinguished from one that cannot
        // be used at all, and NumPy raises ValueError for both.
        if (in_python([&] { return PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_STRIDES); }) != 0) {
            nb::python_error error;  // for instance, NumPy has no format for dates
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
        nb::object capsule = exported(object);
        if (!capsule.is_valid() || !nb::try_cast(capsule, tensor_) || !tensor_.is_valid())
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
        if (Type::of(object).is_of_torch) refuse_lazy(object, dtype);
        if (writable && !PyCapsule_CheckExact(object.ptr())) mark_as_changed(object);
    }
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
        throw nb::type_error(joined({"the array is ", name_of(found), ", not ", name_of(dtype)}).c_str());
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
    auto usage = [&](const char* why) { return EngineError(Fault::usage, joined({name, ": ", why})); };
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
        throw nb::type_error(joined({"dtype must be the name of a type, not ", shown(given)}).c_str());
    const char* name = nb::cast<const char*>(given);
    for (size_t i = 0; i < dtype_count; ++i)
        if (!std::strcmp(name, name_of(static_cast<DType>(i)))) return static_cast<DType>(i);
    throw nb::value_error(joined({"unknown dtype ", name}).c_str());
}

}  // namespace allfold
