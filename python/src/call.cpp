#include "python/src/call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "hpcdl/core/describe.h"
#include "python/src/arguments.h"
#include "python/src/type_error.h"

namespace hpcdl::python {
namespace {

bool has_type(DType d, Type type, Device device) {
  switch (type) {
    case Type::floating: return d == DType::f32 || d == DType::bf16 || (d == DType::f16 && device.is_cuda());
    case Type::f32: return d == DType::f32;
    case Type::u8: return d == DType::u8;
    case Type::index: return d == DType::i32 || d == DType::i64;
    default: return true;
  }
}

const char* type_words(Type type, Device device) {
  switch (type) {
    case Type::floating: return device.is_cuda() ? "float32, bfloat16 or float16" : "float32 or bfloat16";
    case Type::f32: return "float32";
    case Type::u8: return "uint8";
    case Type::index: return "int32 or int64";
    default: return "anything";
  }
}

/// A single row may have the strides of a column.
bool has_dense_columns(const View& v) {
  return v.rank() == 2 && (v.strides()[0] == 1 || v[0] == 1) && v.strides()[1] >= v[0];
}

bool has_layout(const View& v, Layout layout) {
  if (v.is_contiguous()) return true;
  if (layout == Layout::contiguous || v.rank() == 0) return false;
  for (int i = 0; i < v.rank(); ++i)
    if (v.strides()[i] < 0) return false;
  if (layout == Layout::matrix && has_dense_columns(v)) return true;
  if (layout == Layout::dense_last) return v.strides()[-1] == 1;
  return v.rows_are_uniform() && v.row_stride() >= v.cols();
}

/// The first byte and the byte after the last.
std::pair<const std::byte*, const std::byte*> extent(const View& v) {
  const auto* begin = v.ptr<std::byte>();
  if (v.size() == 0) return {begin, begin};
  std::int64_t last = 1;
  for (int i = 0; i < v.rank(); ++i) last += (v[i] - 1) * v.strides()[i];
  return {begin, begin + last * dtype_bytes(v.dtype())};
}

bool overlap(const View& a, const View& b) {
  const auto [a0, a1] = extent(a);
  const auto [b0, b1] = extent(b);
  return a0 < b1 && b0 < a1;
}

/// An empty array may have no memory, but it is not absent.
void* not_null() {
  static std::byte nothing[64];
  return nothing;
}

/// Two elements may share memory: a broadcast, or a view with a stride that is smaller than the extent inside it.
bool overlaps_itself(const View& v) {
  if (v.is_contiguous()) return false;
  std::array<std::pair<std::int64_t, std::int64_t>, Shape::kMaxRank> dims;  // stride, elements
  std::size_t count = 0;
  for (int i = 0; i < v.rank(); ++i)
    if (v[i] > 1) dims.at(count++) = {v.strides()[i], v[i]};
  std::sort(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(count));
  std::int64_t wide = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (dims.at(i).first < wide) return true;
    wide += dims.at(i).first * (dims.at(i).second - 1);
  }
  return false;
}

}  // namespace

// Conditions are tested before the arguments of messages are made: a small call takes about a microsecond, and so does
// describing three tensors.

const Array& Call::take(const char* name, nb::handle object, Form form) {
  require(count_ < kMaxArguments, op_, "too many arguments");
  const Array& array = *new (&slots_.at[count_]) Array(op_, name, object);
  names_[count_++] = name;
  const Tensor& t = array.tensor();
  if (count_ == 1) device_ = t.device();
  if (t.device() != device_) [[unlikely]]
    fail(op_, "{} is on {} and {} on {}: bring them to one device", names_[0], device_name(device_), name,
         device_name(t.device()));
  if (!has_type(t.dtype(), form.type, device_)) [[unlikely]]
    require_type(false, op_, "{} must be {}, got {}", name, type_words(form.type, device_), to_string(t.spec()));
  if (!has_layout(t, form.layout)) [[unlikely]]
    fail(op_, "{} must {}, got {} with strides {}: pass {}.contiguous() (NumPy: numpy.ascontiguousarray)", name,
         form.layout == Layout::contiguous ? "be contiguous" : "have dense rows at a constant distance",
         to_string(t.spec()), to_string(t.strides()), name);
  return array;
}

View Call::in(const char* name, nb::handle object, Form form) {
  const Array& array = take(name, object, form);
  if (!framework_) framework_ = array.framework();
  const View& v = array.tensor();
  return v.data() ? v : View(not_null(), v.spec(), v.device());
}

View Call::in_or_absent(const char* name, nb::handle object, Form form) {
  return object.is_none() ? View() : in(name, object, form);
}

Tensor Call::update(const char* name, nb::handle object, Form form) {
  const View v = in(name, object, form);
  require(slots_.at[count_ - 1].writable(), op_, "{} is read-only, but this call writes to it", name);
  return Tensor(const_cast<void*>(v.data()), v.spec(), v.strides(), v.device());
}

Result Call::out(const char* name, nb::handle object, const Spec& spec, const View& in_place, const Shape& strides,
                 Layout layout) {
  Result r;
  if (object.is_none()) {
    const Shape& steps = strides.rank() ? strides : contiguous_strides(spec.shape);
    if (device_.is_cuda()) {
      r.array = gpu_array(op_, framework_, device_, spec, steps, r.tensor);
      if (!r.tensor.data()) r.tensor = Tensor(not_null(), spec, device_);
      return r;
    }
    r.block = Block(spec.bytes());
    r.tensor = Tensor(r.block.data(), spec, steps, Device::cpu());
    return r;
  }
  const std::size_t before = count_;
  const Array& array = take(name, object, {Type::any, layout});
  const Tensor& v = array.tensor();
  if (!(v.spec() == spec)) [[unlikely]] {
    require_type(v.dtype() == spec.dtype, op_, "{} must be {}, got {}", name, to_string(spec), to_string(v.spec()));
    fail(op_, "{} must be {}, got {}", name, to_string(spec), to_string(v.spec()));
  }
  require(array.writable(), op_, "{} is read-only", name);
  require(!overlaps_itself(v), op_, "{} is a view whose elements share memory, for example a broadcast", name);
  for (std::size_t i = 0; i < before; ++i) {
    const View& other = slots_.at[i].tensor();
    const bool same = in_place && other.data() == in_place.data() && other.data() == v.data() &&
                      other.strides() == v.strides() && other.spec() == v.spec();
    require(same || !overlap(v, other), op_, "{} overlaps {}: the kernel would read what it has written", name,
            names_[i]);
  }
  r.array = nb::borrow(object);
  r.tensor = v.data() ? v : Tensor(not_null(), spec, v.device());
  return r;
}

Tensor Call::scratch(const Spec& spec) {
  require(scratch_count_ < scratch_.size(), op_, "too much scratch");
  if (device_.is_cuda()) {
    Tensor t;
    gpu_scratch_[scratch_count_++] = gpu_array(op_, framework_, device_, spec, contiguous_strides(spec.shape), t);
    return t.data() ? t : Tensor(not_null(), spec, device_);
  }
  Block& block = scratch_[scratch_count_++] = Block(spec.bytes());
  return Tensor(block.data(), spec);
}

nb::object Call::give(Result& r) const {
  if (r.array.is_valid()) return r.array;
  if (!r.tensor) return nb::none();
  return to_array(framework_, std::move(r.block), r.tensor);
}

Several::Several(std::string_view op, const char* name, nb::handle object, std::size_t n) {
  if (object.is_none()) return;
  if (!PyTuple_Check(object.ptr()) && !PyList_Check(object.ptr())) [[unlikely]]
    require_type(false, op, "{} must be None or a tuple of {} entries, got {}", name, n, kind_of(object));
  const auto found = static_cast<std::size_t>(PySequence_Size(object.ptr()));
  require(found == n, op, "{} must have {} entries, got {}", name, n, found);
  items_ = nb::borrow(object);
}

nb::object Several::operator[](std::size_t i) const { return items_.is_valid() ? nb::object(items_[i]) : nb::none(); }

Needs::Needs(std::string_view op, nb::handle needs, std::size_t n) : n_(n) {
  const Several entries(op, "needs", needs, n);
  for (std::size_t i = 0; i < n; ++i) flags_[i] = needs.is_none() || nb::cast<bool>(nb::bool_(entries[i]));
}

bool Needs::none() const {
  return std::none_of(flags_.begin(), flags_.begin() + n_, [](bool f) { return f; });
}

}  // namespace hpcdl::python
