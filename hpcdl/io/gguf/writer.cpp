#include "hpcdl/io/gguf/writer.h"

#include <cstring>

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/header.h"

namespace hpcdl::io {
namespace {

template <class T> void put(std::string& out, T v) {
  char bytes[sizeof v];
  std::memcpy(bytes, &v, sizeof v);
  out.append(bytes, sizeof v);
}

void put_text(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

void put_key(std::string& out, std::string_view key, GgufKind kind) {
  put_text(out, key);
  put(out, static_cast<std::uint32_t>(kind));
}

template <class T> void put_list(std::string& out, GgufKind kind, const std::vector<T>& list) {
  put(out, static_cast<std::uint32_t>(kind));
  put<std::uint64_t>(out, list.size());
  for (const auto& x : list)
    if constexpr (std::is_same_v<T, std::string>) put_text(out, x);
    else put(out, x);
}

std::int64_t aligned(std::int64_t at) { return (at + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment; }

}  // namespace

void GgufValues::add(std::string_view key, std::string_view text) {
  put_key(bytes_, key, GgufKind::text), put_text(bytes_, text), ++count_;
}
void GgufValues::add(std::string_view key, bool flag) {
  put_key(bytes_, key, GgufKind::boolean), put<std::uint8_t>(bytes_, flag), ++count_;
}
void GgufValues::add(std::string_view key, std::uint32_t number) {
  put_key(bytes_, key, GgufKind::u32), put(bytes_, number), ++count_;
}
void GgufValues::add(std::string_view key, float number) {
  put_key(bytes_, key, GgufKind::f32), put(bytes_, number), ++count_;
}
void GgufValues::add(std::string_view key, const std::vector<std::string>& texts) {
  put_key(bytes_, key, GgufKind::list), put_list(bytes_, GgufKind::text, texts), ++count_;
}
void GgufValues::add(std::string_view key, const std::vector<float>& numbers) {
  put_key(bytes_, key, GgufKind::list), put_list(bytes_, GgufKind::f32, numbers), ++count_;
}
void GgufValues::add(std::string_view key, const std::vector<std::int32_t>& numbers) {
  put_key(bytes_, key, GgufKind::list), put_list(bytes_, GgufKind::i32, numbers), ++count_;
}

void GgufValues::add(std::string_view key, const GgufValue& value) {
  put_key(bytes_, key, value.list ? GgufKind::list : value.kind);
  if (value.list)
    put(bytes_, static_cast<std::uint32_t>(value.kind)), put(bytes_, static_cast<std::uint64_t>(value.count));
  bytes_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
  ++count_;
}

std::int64_t GgufWriter::Tensor::bytes() const {
  const auto& info = info_of(type);
  return shape.size() / info.elements * info.bytes;
}

GgufWriter::GgufWriter(const fs::path& path, const GgufValues& values, std::vector<Tensor> tensors)
    : path_(path), file_(path), tensors_(std::move(tensors)) {
  std::string head = "GGUF";
  put<std::uint32_t>(head, 3);
  put<std::uint64_t>(head, tensors_.size());
  put<std::uint64_t>(head, values.count_);
  head += values.bytes_;
  std::int64_t offset = 0;
  for (const auto& t : tensors_) {
    const auto& info = info_of(t.type);
    require(t.shape.rank() >= 1 && t.shape.rank() <= kGgufMaxDims && t.shape[-1] % info.elements == 0, "io",
            "{}: {}: rows of {} come in blocks of {} elements, found the shape {}", path_.string(), t.name, info.name,
            info.elements, to_string(t.shape));
    put_text(head, t.name);
    put(head, static_cast<std::uint32_t>(t.shape.rank()));
    for (int i = t.shape.rank(); i-- > 0;) put(head, static_cast<std::uint64_t>(t.shape[i]));
    put(head, static_cast<std::uint32_t>(t.type));
    put(head, static_cast<std::uint64_t>(offset));
    offset += aligned(t.bytes());
  }
  head.resize(static_cast<std::size_t>(aligned(static_cast<std::int64_t>(head.size()))), '\0');
  file_.reserve(static_cast<std::int64_t>(head.size()) + offset);
  file_.append(head);
  finish_tensors();
}

void GgufWriter::append(std::span<const std::byte> blocks) {
  require(current_ < tensors_.size() && written_ + std::ssize(blocks) <= tensors_[current_].bytes(), "io",
          "{}: expected the {} bytes of tensor {}, got more", path_.string(),
          current_ < tensors_.size() ? tensors_[current_].bytes() : 0,
          current_ < tensors_.size() ? tensors_[current_].name : "none");
  file_.append(blocks);
  written_ += std::ssize(blocks);
  finish_tensors();
}

/// Goes on to the next tensor that is not complete.
void GgufWriter::finish_tensors() {
  while (current_ < tensors_.size() && written_ == tensors_[current_].bytes()) {
    file_.append(std::string(static_cast<std::size_t>(aligned(file_.size()) - file_.size()), '\0'));
    ++current_, written_ = 0;
  }
}

void GgufWriter::commit() {
  require(current_ == tensors_.size(), "io", "{}: tensor {} was not written", path_.string(),
          current_ < tensors_.size() ? tensors_[current_].name : "none");
  file_.commit();
}

}  // namespace hpcdl::io
