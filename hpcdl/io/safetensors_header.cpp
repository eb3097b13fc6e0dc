#include "hpcdl/io/safetensors_header.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

struct RawEntry {
  std::string name;
  Spec spec;
  std::uint64_t begin = 0, end = 0;
  int shapes = 0, offsets = 0;  // how often the key occurred; how many numbers it had
  int offset_keys = 0;
};

/// Parses the JSON while it is read and stops at the first unexpected thing, so that a hostile header can
/// neither nest deep nor fill memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string_view where) : where_(where) {}

  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("true or false"); }
  bool number_float(double, const std::string& text) override { return unexpected("the number " + text); }
  bool number_integer(std::int64_t v) override { return unexpected(fmt::format("the negative number {}", v)); }
  bool binary(Json::binary_t&) override { return unexpected("binary"); }

  bool number_unsigned(std::uint64_t v) override {
    if (at_ == At::shape) {
      auto& shape = entries.back().spec.shape;
      if (shape.rank() == Shape::kMaxRank) bad("expected at most {} dimensions, found more", Shape::kMaxRank);
      if (v > static_cast<std::uint64_t>(INT64_MAX)) bad("dimension {} is impossibly large", v);
      shape.push_back(static_cast<std::int64_t>(v));
    } else if (at_ == At::offsets) {
      auto& e = entries.back();
      if (e.offsets == 2) bad("data_offsets: expected two numbers, found more");
      (e.offsets++ == 0 ? e.begin : e.end) = v;
    } else {
      return unexpected(fmt::format("the number {}", v));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (at_ == At::metadata) {
      if (!metadata.emplace(key_, text).second) bad("metadata key {} appears twice", shown(key_));
    } else if (at_ == At::dtype) {
      const DType d = dtype_from_name(text);
      if (d == DType::none)
        bad("unknown dtype {}; known are F64 F32 F16 BF16 F8_* I64 I32 I16 I8 U64 U32 U16 U8 BOOL", shown(text));
      entries.back().spec.dtype = d;
      at_ = At::entry;
    } else {
      return unexpected("the string " + shown(text));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (at_ == At::outside) at_ = At::top;
    else if (at_ == At::top_value) at_ = key_ == kMetadata ? At::metadata : At::entry;
    else return unexpected("an object");
    return true;
  }

  bool key(std::string& name) override {
    if (at_ == At::top) {
      if (!names_.insert(name).second) fail("io", "{}: {} appears twice in the header", where_, shown(name));
      if (name != kMetadata) entries.emplace_back().name = name;
      at_ = At::top_value;
    } else if (at_ == At::entry) {
      auto& e = entries.back();
      if (name == "dtype") at_ = At::dtype;
      else if (name == "shape") at_ = At::shape_value;
      else if (name == "data_offsets") at_ = At::offsets_value;
      else bad("unknown key {}; expected dtype, shape, data_offsets", shown(name));
      if ((at_ == At::dtype && e.spec) || (at_ == At::shape_value && e.shapes++ > 0) ||
          (at_ == At::offsets_value && e.offset_keys++ > 0))
        bad("key {} appears twice", shown(name));
    }
    key_ = name;
    return true;
  }

  bool end_object() override {
    if (at_ == At::entry) {
      const auto& e = entries.back();
      if (!e.spec || e.shapes == 0 || e.offsets != 2)
        bad("expected dtype, shape and two data_offsets; some are missing");
    }
    at_ = at_ == At::top ? At::outside_end : At::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ == At::shape_value) at_ = At::shape;
    else if (at_ == At::offsets_value) at_ = At::offsets;
    else return unexpected("an array");
    return true;
  }
  bool end_array() override {
    at_ = At::entry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& e) override {
    fail("io", "{}: the header is not JSON (byte {}): {}; is the file damaged, or not safetensors?", where_, position,
         std::string_view(e.what()).substr(0, 300));
  }

 private:
  enum class At {
    outside,
    top,
    top_value,
    metadata,
    entry,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    outside_end
  };

  template <class... A> [[noreturn]] void bad(fmt::format_string<A...> f, A&&... args) const {
    fail("io", "{}: tensor {}: {}", where_, entries.empty() ? "?" : shown(entries.back().name),
         fmt::format(f, std::forward<A>(args)...));
  }
  bool unexpected(const std::string& found) const {
    switch (at_) {
      case At::outside:
      case At::outside_end: fail("io", "{}: expected the header to be an object, found {}", where_, found);
      case At::metadata: fail("io", "{}: __metadata__ {}: expected a string, found {}", where_, shown(key_), found);
      case At::dtype: bad("dtype: expected a string, found {}", found);
      case At::shape_value:
      case At::shape: bad("shape: expected an array of numbers >= 0, found {}", found);
      case At::offsets_value:
      case At::offsets: bad("data_offsets: expected two numbers >= 0, found {}", found);
      default: fail("io", "{}: {}: expected an object, found {}", where_, shown(key_), found);
    }
  }

  std::string_view where_;
  At at_ = At::outside;
  std::string key_;
  std::unordered_set<std::string> names_;
};

/// Bytes of a shape, or -1 if they do not fit into 63 bits.
std::int64_t checked_bytes(const Spec& spec) {
  std::int64_t n = dtype_bytes(spec.dtype);
  for (auto d : spec.shape)
    if (__builtin_mul_overflow(n, d, &n)) return -1;
  return n;
}

std::vector<TensorInfo> check_layout(std::vector<RawEntry>& entries, std::int64_t data_offset, std::int64_t data_bytes,
                                     std::string_view where) {
  std::sort(entries.begin(), entries.end(), [](const RawEntry& a, const RawEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::vector<TensorInfo> out;
  out.reserve(entries.size());
  std::uint64_t next = 0;
  for (auto& e : entries) {
    const std::string name = shown(e.name);
    if (e.begin > e.end || e.end > static_cast<std::uint64_t>(data_bytes))
      fail("io", "{}: tensor {}: data_offsets [{}, {}] lie outside the {} bytes of data: truncated download?", where,
           name, e.begin, e.end, data_bytes);
    const std::int64_t want = checked_bytes(e.spec), have = static_cast<std::int64_t>(e.end - e.begin);
    require(want >= 0, "io", "{}: tensor {}: {} is larger than any file: damaged header?", where, name,
            to_string(e.spec));
    require(want == have, "io", "{}: tensor {}: {} needs {} bytes, data_offsets [{}, {}] hold {}", where, name,
            to_string(e.spec), want, e.begin, e.end, have);
    require(e.begin >= next, "io", "{}: tensor {}: begins at {} inside the tensor before it, which ends at {}", where,
            name, e.begin, next);
    require(e.begin == next, "io", "{}: tensor {}: begins at {}, but the data before it ends at {}: a hole of {} bytes",
            where, name, e.begin, next, e.begin - next);
    next = e.end;
    out.push_back({std::move(e.name), e.spec, data_offset + static_cast<std::int64_t>(e.begin)});
  }
  require(next == static_cast<std::uint64_t>(data_bytes), "io",
          "{}: tensors end at {}, the data at {}: {} bytes belong to no tensor", where, next, data_bytes,
          static_cast<std::uint64_t>(data_bytes) - next);
  return out;
}

}  // namespace

SafeTensorsHeader parse_safetensors_header(std::span<const std::byte> file, std::string_view where) {
  const auto size = static_cast<std::int64_t>(file.size());
  require(size >= 8, "io", "{}: expected a safetensors file of at least 8 bytes, found {}: truncated download?", where,
          size);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);  // little-endian, as is this machine
  require(length <= kMaxHeaderBytes, "io",
          "{}: the header claims {} bytes, but at most {} are allowed: not a safetensors file?", where, length,
          kMaxHeaderBytes);
  const auto n = static_cast<std::int64_t>(length);
  require(n <= size - 8, "io", "{}: header says {} bytes at 8, file ends at {}: truncated download?", where, n, size);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, static_cast<std::size_t>(n));
  require(text.starts_with('{'), "io", "{}: expected a header that starts with '{{', found {}", where,
          shown(text.substr(0, 8)));

  HeaderReader reader(where);
  Json::sax_parse(text.begin(), text.end(), &reader);
  SafeTensorsHeader header;
  header.data_offset = 8 + n;
  header.metadata = std::move(reader.metadata);
  header.tensors = check_layout(reader.entries, header.data_offset, size - header.data_offset, where);
  return header;
}

std::string make_safetensors_header(const std::vector<TensorInfo>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  std::unordered_set<std::string_view> names;
  std::string json = "{";
  try {
    if (!metadata.empty()) json += fmt::format("\"{}\":{}", kMetadata, Json(metadata).dump());
    for (const auto& t : tensors) {
      require(t.name != kMetadata && names.insert(t.name).second, "io", "tensor {}: this name is already used",
              shown(t.name));
      if (json.size() > 1) json += ',';
      json += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", Json(t.name).dump(),
                          dtype_name(t.spec.dtype), fmt::join(t.spec.shape.begin(), t.spec.shape.end(), ","), t.offset,
                          t.offset + t.spec.bytes());
    }
  } catch (const Json::exception& e) {
    fail("io", "a tensor name or metadata is not UTF-8: {}", e.what());
  }
  json += '}';
  while ((json.size() + 8) % 64 != 0) json += ' ';
  require(static_cast<std::int64_t>(json.size()) <= kMaxHeaderBytes, "io",
          "the header of {} tensors needs {} bytes, allowed are {}", tensors.size(), json.size(), kMaxHeaderBytes);
  const std::uint64_t length = json.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + json;
}

}  // namespace hpcdl::io
