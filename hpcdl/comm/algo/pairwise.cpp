#include "hpcdl/comm/algo/pairwise.h"

namespace hpcdl::comm::algo {

namespace {

/// going(to) and coming(from): the bytes for a rank.
template <class Going, class Coming> void steps(Peers& peers, Going going, Coming coming) {
  const int rank = peers.rank(), size = peers.size();
  for (int s = 1; s < size; ++s) {
    const int to = (rank + s) % size, from = (rank + size - s) % size;
    exchange(peers, to, going(to), from, coming(from));
  }
}

}  // namespace

void pairwise_all_to_all(Peers& peers, std::byte* out, const std::byte* in, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  copy_bytes(out + peers.rank() * bytes, in + peers.rank() * bytes, bytes);
  steps(
      peers, [&](int to) { return ConstBytes(in + to * bytes, size); },
      [&](int from) { return Bytes(out + from * bytes, size); });
}

void pairwise_all_gather(Peers& peers, std::byte* out, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  steps(
      peers, [&](int) { return ConstBytes(out + peers.rank() * bytes, size); },
      [&](int from) { return Bytes(out + from * bytes, size); });
}

void pairwise_reduce_scatter(Peers& peers, Scratch& scratch, const Reduction& r, std::byte* out, const std::byte* in,
                             std::int64_t n) {
  const std::int64_t bytes = r.bytes(n);
  const auto size = static_cast<std::size_t>(bytes);
  std::byte* room = scratch.bytes(bytes * peers.size());
  std::vector<const std::byte*> parts;
  for (int k = 0; k < peers.size(); ++k) parts.push_back(k == peers.rank() ? in + k * bytes : room + k * bytes);
  steps(
      peers, [&](int to) { return ConstBytes(in + to * bytes, size); },
      [&](int from) { return Bytes(room + from * bytes, size); });
  combine_all(r, std::span(&out, 1), parts, n);
}

}  // namespace hpcdl::comm::algo
