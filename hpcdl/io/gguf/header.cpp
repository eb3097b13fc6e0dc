#include "hpcdl/io/gguf/header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kMaxGgufAlignment = 1 << 20;

class GgufHeaderReader {
 public:
  GgufHeaderReader(std::span<const std::byte> file, std::string_view where) : file_(file), where_(where) {}

  GgufHeader read() {
    read_start();
    GgufHeader header{.metadata = GgufMetadata(where_)};
    for (std::uint64_t i = 0; i < values_; ++i) read_value(header.metadata);
    header.alignment = alignment_in(header.metadata);
    for (std::uint64_t i = 0; i < tensors_; ++i) header.tensors.push_back(read_tensor());
    place(header);
    return header;
  }

 private:
  std::uint64_t left() const { return file_.size() - at_; }

  /// `what` names the part of the header in errors.
  std::span<const std::byte> take(std::uint64_t bytes, std::string_view what) {
    require(bytes <= left(), "io", "{}: {} needs {} bytes at {}, but the file ends at {}: truncated download?", where_,
            what, bytes, at_, file_.size());
    const auto part = file_.subspan(at_, static_cast<std::size_t>(bytes));
    at_ += part.size();
    return part;
  }
  template <class T> T number(std::string_view what) {
    T v;
    std::memcpy(&v, take(sizeof v, what).data(), sizeof v);
    return v;
  }
  std::string_view text(std::string_view what) {
    const auto bytes = take(number<std::uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  /// A count of things of at least `each` bytes.
  std::uint64_t count(std::uint64_t each, std::string_view what) {
    const auto n = number<std::uint64_t>(what);
    require(n <= left() / each, "io", "{}: {}: expected at most {}, which would fill the file, found {}", where_, what,
            left() / each, n);
    return n;
  }

  void read_start() {
    constexpr std::string_view kMagic = "GGUF";
    require(file_.size() >= 24, "io", "{}: expected a GGUF file of at least 24 bytes, found {}: truncated download?",
            where_, file_.size());
    const auto magic = take(4, "the magic number");
    const std::string_view found(reinterpret_cast<const char*>(magic.data()), 4);
    require(found == kMagic, "io", "{}: expected a GGUF file, which begins with \"GGUF\", found {}", where_,
            shown(found));
    const auto version = number<std::uint32_t>("the version");
    require((version & 0xFFFFu) != 0, "io", "{}: expected a little-endian file, found a big-endian one", where_);
    require(version == 2 || version == 3, "io", "{}: expected GGUF version 2 or 3, found {}", where_, version);
    tensors_ = count(24, "the number of tensors");
    values_ = count(13, "the number of values");
  }

  GgufKind kind(std::string_view key) {
    const auto n = number<std::uint32_t>("the kind of a value");
    require(n <= static_cast<std::uint32_t>(GgufKind::f64), "io",
            "{}: {}: expected a kind of value from 0 to 12, found {}", where_, shown(key), n);
    return static_cast<GgufKind>(n);
  }

  void read_value(GgufMetadata& metadata) {
    const auto key = text("a key");
    const auto what = [&] { return "the value of " + shown(key); };
    GgufValue v{.kind = kind(key)};
    if (v.kind == GgufKind::list) {
      v.list = true;
      v.kind = kind(key);
      require(v.kind != GgufKind::list, "io", "{}: {}: expected a list of numbers or texts, found a list of lists",
              where_, shown(key));
      v.count = static_cast<std::int64_t>(
          count(static_cast<std::uint64_t>(v.kind == GgufKind::text ? 8 : bytes_of(v.kind)), what()));
    }
    const auto begin = at_;
    if (v.kind == GgufKind::text)
      for (std::int64_t i = 0; i < v.count; ++i) text(what());
    else take(static_cast<std::uint64_t>(v.count * bytes_of(v.kind)), what());
    v.bytes = file_.subspan(begin, at_ - begin);
    metadata.add(key, v);
  }

  std::int64_t alignment_in(const GgufMetadata& metadata) const {
    const auto a = metadata.get_or<std::int64_t>("general.alignment", kGgufAlignment);
    require(a > 0 && a <= kMaxGgufAlignment && (a & (a - 1)) == 0, "io",
            "{}: general.alignment: expected a power of two up to {}, found {}", where_, kMaxGgufAlignment, a);
    return a;
  }

  GgufTensor read_tensor() {
    GgufTensor t{.name = std::string(text("the name of a tensor"))};
    require(names_.insert(t.name).second, "io", "{}: expected every tensor once, found {} twice", where_,
            shown(t.name));
    const auto what = "tensor " + shown(t.name);
    const auto dims = number<std::uint32_t>(what);
    require(dims >= 1 && dims <= static_cast<std::uint32_t>(kGgufMaxDims), "io",
            "{}: {}: expected 1 to {} dimensions, found {}", where_, what, kGgufMaxDims, dims);
    std::uint64_t sizes[kGgufMaxDims] = {};
    for (std::uint32_t i = 0; i < dims; ++i) sizes[i] = number<std::uint64_t>(what);
    const auto type = number<std::uint32_t>(what);
    const auto* info = find_gguf_type(type);
    require(info != nullptr, "io", "{}: {}: expected one of the types {}; found {}", where_, what, known_gguf_types(),
            describe_gguf_type(type));
    t.type = info->type;
    t.bytes = bytes_of_data(what, *info, {sizes, dims});
    for (auto i = dims; i-- > 0;) t.shape.push_back(static_cast<std::int64_t>(sizes[i]));
    const auto offset = number<std::uint64_t>(what);
    require(offset <= file_.size(), "io",
            "{}: {}: its data would begin at {} of the data, but the file has {} bytes: truncated download?", where_,
            what, offset, file_.size());
    t.offset = static_cast<std::int64_t>(offset);
    return t;
  }

  std::int64_t bytes_of_data(const std::string& what, const GgufTypeInfo& info, std::span<const std::uint64_t> sizes) {
    const auto block = static_cast<std::uint64_t>(info.elements);
    require(sizes[0] % block == 0, "io", "{}: {}: rows of {} come in blocks of {} elements, found rows of {}", where_,
            what, info.name, block, sizes[0]);
    std::uint64_t bytes = sizes[0] / block;
    bool overflow = __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(info.bytes), &bytes);
    for (std::size_t i = 1; i < sizes.size(); ++i) overflow |= __builtin_mul_overflow(bytes, sizes[i], &bytes);
    const bool huge = std::ranges::any_of(sizes, [](auto n) { return n > std::uint64_t{1} << 60; });
    require(!overflow && !huge && bytes <= file_.size(), "io",
            "{}: {}: expected at most the {} bytes of the file, found the dimensions {}, which need more", where_, what,
            file_.size(), fmt::join(sizes, " x "));
    return static_cast<std::int64_t>(bytes);
  }

  /// Turns offsets into the data into offsets into the file.
  void place(GgufHeader& header) const {
    const auto size = static_cast<std::int64_t>(file_.size()), a = header.alignment;
    const std::int64_t data = (static_cast<std::int64_t>(at_) + a - 1) / a * a;
    std::vector<const GgufTensor*> by_offset;
    for (auto& t : header.tensors) {
      require(t.offset % a == 0, "io", "{}: tensor {}: expected data at a multiple of {}, found them at {}", where_,
              shown(t.name), a, t.offset);
      require(t.bytes <= size - data && t.offset <= size - data - t.bytes, "io",
              "{}: tensor {}: its {} bytes at {} of the data end behind the file, which has {} bytes of data: "
              "truncated download?",
              where_, shown(t.name), t.bytes, t.offset, std::max<std::int64_t>(size - data, 0));
      t.offset += data;
      if (t.bytes > 0) by_offset.push_back(&t);
    }
    std::ranges::sort(by_offset, {}, &GgufTensor::offset);
    for (std::size_t i = 1; i < by_offset.size(); ++i) {
      const auto &before = *by_offset[i - 1], &t = *by_offset[i];
      require(t.offset >= before.offset + before.bytes, "io",
              "{}: tensor {}: begins at {}, inside of tensor {}, which ends at {}", where_, shown(t.name), t.offset,
              shown(before.name), before.offset + before.bytes);
    }
  }

  std::span<const std::byte> file_;
  std::string where_;
  std::size_t at_ = 0;
  std::uint64_t tensors_ = 0, values_ = 0;
  std::unordered_set<std::string> names_;
};

}  // namespace

GgufHeader parse_gguf_header(std::span<const std::byte> file, std::string_view where) {
  return GgufHeaderReader(file, where).read();
}

}  // namespace hpcdl::io
