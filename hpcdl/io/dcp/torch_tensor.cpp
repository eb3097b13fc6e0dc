#include "hpcdl/io/dcp/torch_tensor.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/zip.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/number_within.h"

namespace hpcdl::io::dcp {
namespace {

constexpr std::string_view kSize = "torch.Size", kRebuild = "torch._utils._rebuild_tensor_v2",
                           kRebuild3 = "torch._utils._rebuild_tensor_v3",
                           kParameter = "torch._utils._rebuild_parameter", kUntyped = "torch.storage.UntypedStorage";

/// The classes of storage, which say the type of the elements of _rebuild_tensor_v2.
constexpr std::pair<std::string_view, DType> kStorages[] = {
    {"torch.FloatStorage", DType::f32},   {"torch.BFloat16Storage", DType::bf16}, {"torch.HalfStorage", DType::f16},
    {"torch.DoubleStorage", DType::f64},  {"torch.LongStorage", DType::i64},      {"torch.IntStorage", DType::i32},
    {"torch.ShortStorage", DType::i16},   {"torch.CharStorage", DType::i8},       {"torch.ByteStorage", DType::u8},
    {"torch.BoolStorage", DType::boolean}};

const std::vector<std::string_view>& known_in_archives() {
  static const auto names = [] {
    std::vector<std::string_view> list{kSize, kRebuild, kRebuild3, kParameter, kUntyped, "collections.OrderedDict"};
    for (const auto& [name, _] : kStorages) list.push_back(name);
    for (const auto name : dtype_names()) list.push_back(name);
    return list;
  }();
  return names;
}

class TensorReader {
 public:
  TensorReader(std::string_view archive, const std::string& from) : from_(from), files_(read_zip(archive, from)) {}

  View read() const {
    const auto pickled = std::ranges::find_if(files_, [](const ZipFile& f) { return f.name.ends_with("/data.pkl"); });
    if (pickled == files_.end()) refuse("it has no file data.pkl");
    const auto root = pickled->name.substr(0, pickled->name.size() - std::string_view("data.pkl").size());
    if (const auto order = bytes_of(root, "byteorder"); order && *order != "little")
      refuse("its numbers are big-endian");
    const auto document = pickle::read(pickled->bytes, from_ + ": data.pkl", known_in_archives());
    const pickle::Value* value = &document.root();
    if (const auto* parameter = value->made_by(kParameter); parameter && !parameter->empty())
      value = parameter->front();
    const auto* v2 = value->made_by(kRebuild);
    const auto* v3 = value->made_by(kRebuild3);
    const auto* a = v2 ? v2 : v3;
    if (!a || a->size() < (v2 ? 4u : 7u)) refuse("it does not hold one plain tensor");
    return view_of(*a, v3 ? dtype_of(*(*a)[6]) : DType::none, root);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { fail("io", "{}: {}", from_, why); }

  std::optional<std::string_view> bytes_of(std::string_view root, std::string_view name) const {
    for (const auto& f : files_)
      if (f.name.starts_with(root) && f.name.substr(root.size()) == name) return f.bytes;
    return std::nullopt;
  }

  /// `a`: storage, first element, size, strides, ...; `dtype`: none if the class of the storage says it.
  View view_of(const std::vector<pickle::Ref>& a, DType dtype, std::string_view root) const {
    const auto* id = a[0]->as<pickle::Persistent>();
    const auto* storage = id ? id->id->as<pickle::Tuple>() : nullptr;
    // "storage", its class, its key, its device, its elements (bytes if it is untyped)
    if (!storage || storage->items.size() != 5) refuse("it does not say where its storage is");
    const auto* type = storage->items[1]->as<pickle::Global>();
    const auto* key = storage->items[2]->as<pickle::Text>();
    if (!type || !key) refuse("it does not say where its storage is");
    if (dtype == DType::none)
      for (const auto& [name, d] : kStorages)
        if (name == type->name) dtype = d;
    if (dtype == DType::none) refuse(fmt::format("its type is {}, which is not supported", shown(type->name)));
    const auto bytes = bytes_of(root, "data/" + std::string(key->text));
    if (!bytes) refuse(fmt::format("its storage {} is missing", shown(key->text)));
    const Spec spec{shape_of(*a[2], from_ + ": size"), dtype};
    const Shape strides = shape_of(*a[3], from_ + ": strides");
    const auto* first = a[1]->as<std::int64_t>();
    if (!first || *first < 0 || strides.rank() != spec.shape.rank()) refuse("its strides do not fit its size");
    if (!fits(spec, strides, *first, static_cast<std::int64_t>(bytes->size()) / dtype_bytes(dtype)))
      refuse(fmt::format("a tensor of {} with strides {} from element {} does not lie in its storage of {} bytes",
                         to_string(spec), to_string(strides), *first, bytes->size()));
    return View(bytes->data() + *first * dtype_bytes(dtype), spec, strides, {});
  }

  /// Whether the last element lies in the storage.
  static bool fits(const Spec& spec, const Shape& strides, std::int64_t first, std::int64_t elements) {
    std::int64_t last = first, span = 0, size = 1;
    for (int d = 0; d < spec.shape.rank(); ++d) {
      if (__builtin_mul_overflow(size, std::max<std::int64_t>(spec.shape[d], 1), &size) ||
          __builtin_mul_overflow(std::max<std::int64_t>(spec.shape[d] - 1, 0), strides[d], &span) ||
          __builtin_add_overflow(last, span, &last))
        return false;
    }
    const bool empty = std::ranges::find(spec.shape, 0) != spec.shape.end();
    return empty ? first <= elements : size <= elements && last < elements;
  }

  const std::string& from_;
  std::vector<ZipFile> files_;
};

}  // namespace

std::vector<std::string_view> dtype_names() {
  static const auto names = [] {
    std::array<std::string, kDTypeCount> list;
    for (int i = 1; i < kDTypeCount; ++i)
      list[static_cast<std::size_t>(i)] = "torch." + torch_name(static_cast<DType>(i));
    return list;
  }();
  return {names.begin() + 1, names.end()};
}

std::string torch_name(DType dtype) { return std::string(array_name(dtype)); }

std::string_view storage_name(DType dtype) {
  for (const auto& [name, d] : kStorages)
    if (d == dtype) return name.substr(std::string_view("torch.").size());
  return {};
}

DType dtype_of(const pickle::Value& value) {
  const auto* global = value.as<pickle::Global>();
  const auto names = dtype_names();
  const auto it = global ? std::ranges::find(names, global->name) : names.end();
  return it == names.end() ? DType::none : static_cast<DType>(it - names.begin() + 1);
}

Shape shape_of(const pickle::Value& value, const std::string& where) {
  const auto* size = value.made_by(kSize);
  const pickle::Value& plain = size && size->size() == 1 ? *size->front() : value;
  const auto* tuple = plain.as<pickle::Tuple>();
  require(tuple && tuple->items.size() <= Shape::kMaxRank, "io", "{}: expected at most {} numbers", where,
          Shape::kMaxRank);
  Shape shape;
  for (const auto* item : tuple->items) {
    const auto* n = item->as<std::int64_t>();
    require(n && *n >= 0 && *n <= kMaxCount, "io", "{}: expected numbers from 0 to {}", where, kMaxCount);
    shape.push_back(*n);
  }
  return shape;
}

View read_torch_tensor(std::string_view archive, const std::string& from) { return TensorReader(archive, from).read(); }

}  // namespace hpcdl::io::dcp
