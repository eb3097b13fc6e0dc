#include "hpcdl/infer/step_order.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {

namespace {

constexpr std::size_t kAlign = 8;

class Writer {
 public:
  template <class T> void put(std::span<const T> list) {
    static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= kAlign);
    const std::uint64_t count = list.size();
    append(&count, sizeof count), append(list.data(), list.size_bytes());
  }
  template <class T> void put(const T& value) { put(std::span<const T>(&value, 1)); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(const void* data, std::size_t size) {
    const auto at = bytes_.size();
    bytes_.resize(at + (size + kAlign - 1) / kAlign * kAlign);
    if (size > 0) std::memcpy(bytes_.data() + at, data, size);
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T> std::span<const T> list() {
    const auto count = *reinterpret_cast<const std::uint64_t*>(next(sizeof(std::uint64_t)));
    require(count <= left_.size() / sizeof(T), "engine", "an order of rank 0 is cut off: {} items in {} bytes", count,
            left_.size());
    return {reinterpret_cast<const T*>(next(count * sizeof(T))), count};
  }
  template <class T> const T& value() {
    const auto one = list<T>();
    require(one.size() == 1, "engine", "expected one item in an order of rank 0, found {}", one.size());
    return one[0];
  }

 private:
  const std::byte* next(std::size_t size) {
    const auto padded = (size + kAlign - 1) / kAlign * kAlign;
    require(padded <= left_.size(), "engine", "an order of rank 0 is cut off: expected {} bytes, found {}", padded,
            left_.size());
    const auto* at = left_.data();
    left_ = left_.subspan(padded);
    return at;
  }
  std::span<const std::byte> left_;
};

/// Of a row, without its pages.
struct Counts {
  std::int64_t length, tokens, read, left, adapter;
};

}  // namespace

std::vector<std::byte> to_bytes(const Step& step) {
  Writer w;
  w.put(step.layout), w.put(step.continues), w.put(step.tokens), w.put(step.rules), w.put(step.wanted);
  w.put(static_cast<std::uint64_t>(step.continues ? 0 : step.rows.size()));
  for (const auto& r : step.continues ? std::span<const BatchRow>() : step.rows)
    w.put(Counts{r.length, r.tokens, r.read, r.left, r.adapter}), w.put(r.pages.all), w.put(r.pages.window);
  w.put(static_cast<std::uint64_t>(step.changes.size()));
  for (const auto& c : step.changes)
    w.put(c.penalties), w.put(std::span(c.biases)), w.put(std::span(c.counts)), w.put(std::span(c.mask));
  return w.take();
}

ReadStep::ReadStep(std::span<const std::byte> bytes) {
  Reader r(bytes);
  step_.layout = r.value<BatchLayout>(), step_.continues = r.value<bool>();
  step_.tokens = r.list<std::int32_t>(), step_.rules = r.list<SampleRule>(), step_.wanted = r.list<std::int32_t>();
  for (auto n = r.value<std::uint64_t>(); n > 0; --n) {
    const auto& c = r.value<Counts>();
    const auto all = r.list<std::int32_t>(), window = r.list<std::int32_t>();
    rows_.push_back({.pages = {all, window},
                     .length = c.length,
                     .tokens = c.tokens,
                     .read = c.read,
                     .adapter = static_cast<std::int32_t>(c.adapter),
                     .left = c.left});
  }
  for (auto n = r.value<std::uint64_t>(); n > 0; --n) {
    auto& c = changes_.emplace_back();
    const auto take = [&](auto& list) {
      const auto items = r.list<std::remove_cvref_t<decltype(list[0])>>();
      list.assign(items.begin(), items.end());
    };
    c.penalties = r.value<LogitPenalties>();
    take(c.biases), take(c.counts), take(c.mask);
  }
  step_.rows = rows_, step_.changes = changes_;
}

}  // namespace hpcdl::infer
