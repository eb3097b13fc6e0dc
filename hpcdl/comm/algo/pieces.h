#pragma once
// Building blocks of the algorithms: parts of a tensor, and messages that are cancelled when their scope is left early.

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "hpcdl/comm/algo/reduction.h"
#include "hpcdl/comm/dispatch.h"

namespace hpcdl::comm::algo {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t count() const { return end - begin; }
};

/// The i-th of `parts` parts of n elements, whose sizes differ by at most one element.
inline Range part_of(std::int64_t n, int parts, int i) { return {n * i / parts, n * (i + 1) / parts}; }

/// The tensor of a reduction in memory: ranges of elements as bytes.
struct Elements {
  std::byte* data = nullptr;
  std::int64_t width = 1;  // bytes of an element

  Bytes operator[](Range r) const { return {data + r.begin * width, static_cast<std::size_t>(r.count() * width)}; }
};

/// Messages under way, in the order they were started. The destructor cancels those that were not waited for.
class Messages {
 public:
  explicit Messages(Peers& peers) : peers_(peers) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;
  ~Messages() {
    for (std::size_t i = waited_; i < list_.size(); ++i)
      if (list_[i].id != 0) peers_.transport().cancel(list_[i]);
  }

  void send(int to, ConstBytes bytes) { list_.push_back(peers_.send(to, bytes)); }
  void receive(int from, Bytes bytes) { list_.push_back(peers_.receive(from, bytes)); }
  std::size_t started() const { return list_.size(); }
  /// Waits until the first `count` of them are done.
  void wait(std::size_t count) {
    for (; waited_ < count; ++waited_) peers_.wait(list_[waited_]);
  }
  void wait() { wait(list_.size()); }

 private:
  Peers& peers_;
  std::vector<Transport::Pending> list_;
  std::size_t waited_ = 0;
};

/// Bytes of one message. Long tensors are sent in messages of this size, so that combining one overlaps with receiving
/// the next.
inline constexpr std::int64_t kSegment = 256 << 10;
inline std::int64_t segments_of(std::int64_t bytes) {
  return std::max<std::int64_t>(1, (bytes + kSegment - 1) / kSegment);
}

/// Sends and receives at the same time, in segments; arrived(begin, end) is called with bytes of `in` in order.
/// Receives nothing, or sends nothing, if that side is empty.
template <class F> void exchange(Peers& peers, int to, ConstBytes out, int from, Bytes in, F&& arrived) {
  Messages received(peers), sent(peers);
  const auto each = [](std::size_t n, auto&& f) {
    for (std::size_t at = 0; at < n; at += kSegment) f(at, std::min(n - at, static_cast<std::size_t>(kSegment)));
  };
  each(in.size(), [&](std::size_t at, std::size_t n) { received.receive(from, in.subspan(at, n)); });
  each(out.size(), [&](std::size_t at, std::size_t n) { sent.send(to, out.subspan(at, n)); });
  std::size_t count = 0;
  each(in.size(), [&](std::size_t at, std::size_t n) {
    received.wait(++count);
    arrived(static_cast<std::int64_t>(at), static_cast<std::int64_t>(at + n));
  });
  sent.wait();
}
inline void exchange(Peers& peers, int to, ConstBytes out, int from, Bytes in) {
  exchange(peers, to, out, from, in, [](std::int64_t, std::int64_t) {});
}
inline void send(Peers& peers, int to, ConstBytes bytes) { exchange(peers, to, bytes, to, {}); }
inline void receive(Peers& peers, int from, Bytes bytes) { exchange(peers, from, {}, from, bytes); }

inline void copy_bytes(std::byte* to, const std::byte* from, std::int64_t n) {
  if (n > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(n));
}

/// Copies this rank's part to its place among all parts.
inline void place_own_part(const Call& c, const Ground& g, const std::byte* part) {
  copy_bytes(c.out + g.peers.rank() * c.bytes(), part, c.bytes());
}

inline Reduction reduction_of(const Call& c, const Ground& g) { return {c.dtype, c.op, g.peers.size()}; }

}  // namespace hpcdl::comm::algo
