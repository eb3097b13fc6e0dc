#include "hpcdl/comm/dispatch.h"

#include <algorithm>
#include <cstring>

namespace hpcdl::comm {
namespace {

template <class T> void combine_typed(Reduce op, T* acc, const T* x, std::int64_t n) {
  using A = std::conditional_t<sizeof(T) == 2 && !std::is_integral_v<T>, float, T>;
  if (op == Reduce::max)
    for (std::int64_t i = 0; i < n; ++i) acc[i] = static_cast<A>(acc[i]) < static_cast<A>(x[i]) ? x[i] : acc[i];
  else
    for (std::int64_t i = 0; i < n; ++i) acc[i] = T(static_cast<A>(acc[i]) + static_cast<A>(x[i]));
}

template <class F> void visit(DType d, F&& f) {
  switch (d) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(f16{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::i16: return f(std::int16_t{});
    case DType::i8: return f(std::int8_t{});
    case DType::u64: return f(std::uint64_t{});
    case DType::u32: return f(std::uint32_t{});
    case DType::u16: return f(std::uint16_t{});
    default: return f(std::uint8_t{});
  }
}

void combine(const Call& c, std::byte* acc, const std::byte* x, std::int64_t n) {
  visit(c.dtype, [&]<class T>(T) { combine_typed(c.op, reinterpret_cast<T*>(acc), reinterpret_cast<const T*>(x), n); });
}

void divide(const Call& c, std::byte* x, std::int64_t n, int ranks) {
  if (c.op != Reduce::avg) return;
  visit(c.dtype, [&]<class T>(T) {
    T* v = reinterpret_cast<T*>(x);
    if constexpr (!std::is_integral_v<T>) {
      using A = std::conditional_t<sizeof(T) == 8, double, float>;
      for (std::int64_t i = 0; i < n; ++i) v[i] = T(static_cast<A>(v[i]) / static_cast<A>(ranks));
    }
  });
}

struct Exchange {
  const Call& call;
  Ground& ground;
  Peers& peers = ground.peers;
  int rank = peers.rank(), size = peers.size();
  std::int64_t part = call.bytes();

  std::span<const std::byte> in(int i) const { return {call.in + i * part, static_cast<std::size_t>(part)}; }
  std::span<std::byte> out(int i) const { return {call.out + i * part, static_cast<std::size_t>(part)}; }
  void wait_all() {
    for (auto& p : ground.scratch.pending) peers.wait(p);
    ground.scratch.pending.clear();
  }

  void all_reduce() {
    if (rank != 0) {
      auto sent = peers.send(0, out(0));
      peers.wait(sent);
      auto got = peers.receive(0, out(0));
      return peers.wait(got);
    }
    std::byte* other = ground.scratch.bytes(part);
    for (int r = 1; r < size; ++r) {
      auto got = peers.receive(r, {other, static_cast<std::size_t>(part)});
      peers.wait(got);
      combine(call, call.out, other, call.count);
    }
    divide(call, call.out, call.count, size);
    for (int r = 1; r < size; ++r) ground.scratch.pending.push_back(peers.send(r, out(0)));
    wait_all();
  }

  void reduce_scatter() {
    std::byte* others = ground.scratch.bytes(part * size);
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      ground.scratch.pending.push_back(peers.receive(r, {others + r * part, static_cast<std::size_t>(part)}));
      ground.scratch.pending.push_back(peers.send(r, in(r)));
    }
    if (part > 0) std::memcpy(others + rank * part, call.in + rank * part, static_cast<std::size_t>(part));
    wait_all();
    for (int r = 1; r < size; ++r) combine(call, others, others + r * part, call.count);
    divide(call, others, call.count, size);
    if (part > 0) std::memcpy(call.out, others, static_cast<std::size_t>(part));
  }

  void all_gather() {
    if (part > 0 && call.in != out(rank).data()) std::memcpy(out(rank).data(), call.in, static_cast<std::size_t>(part));
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      ground.scratch.pending.push_back(peers.receive(r, out(r)));
      ground.scratch.pending.push_back(peers.send(r, in(0)));
    }
    wait_all();
  }

  void all_to_all() {
    if (part > 0) std::memcpy(out(rank).data(), in(rank).data(), static_cast<std::size_t>(part));
    for (int r = 0; r < size; ++r) {
      if (r == rank) continue;
      ground.scratch.pending.push_back(peers.receive(r, out(r)));
      ground.scratch.pending.push_back(peers.send(r, in(r)));
    }
    wait_all();
  }

  void broadcast() {
    if (rank != call.peer) {
      auto got = peers.receive(call.peer, out(0));
      return peers.wait(got);
    }
    for (int r = 0; r < size; ++r)
      if (r != rank) ground.scratch.pending.push_back(peers.send(r, out(0)));
    wait_all();
  }
};

}  // namespace

void run(const Call& call, Ground& ground) {
  Exchange x{call, ground};
  switch (call.what) {
    case Collective::all_reduce:
    case Collective::barrier: return x.all_reduce();  // a barrier has no elements
    case Collective::reduce_scatter: return x.reduce_scatter();
    case Collective::all_gather:
    case Collective::split: return x.all_gather();
    case Collective::all_to_all: return x.all_to_all();
    case Collective::broadcast: return x.broadcast();
    case Collective::send: {
      auto sent = ground.peers.send(call.peer, x.in(0));
      return ground.peers.wait(sent);
    }
    case Collective::receive: {
      auto got = ground.peers.receive(call.peer, x.out(0));
      return ground.peers.wait(got);
    }
  }
}

}  // namespace hpcdl::comm
