#include <algorithm>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/attention/heads.cuh"
#include "hpcdl/ops/attention/parts.h"

// Heads whose rows are not whole 16-byte pieces: the operands are copied to the workspace, with zeros after each row,
// the fast kernels compute there, and the results are copied back. As many sequences and key heads at a time as fit.

namespace hpcdl::cuda {
namespace {

constexpr int kThreads = 256, kMost = 5;
constexpr auto kRoom = static_cast<std::int64_t>(kWorkspaceBytes);

/// An operand of the call and its copy (B, tokens, heads, padded width).
struct Copied {
  Heads x;
  uint4* copy = nullptr;
  int tokens = 0, heads = 0;
  int pieces = 0;  // of all rows
};
/// Operands that are copied in one launch.
struct Copies {
  Copied list[kMost];
  int count = 0, row = 0, width = 0, element = 0;  // pieces of a padded row, bytes of a row and of an element
};

/// Piece i of an operand: its place in the call, as far as the row reaches.
struct Piece {
  char* at;
  int left;  // bytes of the row from here on

  __device__ Piece(const Copies& c, const Copied& o, int i) {
    const int row = i / c.row, token = row / o.heads, b = token / o.tokens, t = token - b * o.tokens,
              first = (i - row * c.row) * 16;
    at = static_cast<char*>(o.x.data) + o.x.at(b, t, row - token * o.heads) * c.element + first;
    left = c.width - first;
  }
};

/// Word: the largest access that the rows of all operands are aligned to.
template <class Word> __global__ void __launch_bounds__(kThreads) pad_heads(const __grid_constant__ Copies c) {
  constexpr int kSize = static_cast<int>(sizeof(Word)), kWords = 16 / kSize;
  const Copied& o = c.list[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= o.pieces) return;
  const Piece p(c, o, i);
  union {
    uint4 all{};
    Word words[kWords];
  } piece;
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    if (k * kSize < p.left) piece.words[k] = reinterpret_cast<const Word*>(p.at)[k];
  o.copy[i] = piece.all;
}

template <class T, class Word>
__global__ void __launch_bounds__(kThreads) unpad_heads(const __grid_constant__ Copies c) {
  constexpr int kSize = static_cast<int>(sizeof(Word)), kWords = 16 / kSize,
                kElements = 16 / static_cast<int>(sizeof(T));
  const Copied& o = c.list[blockIdx.y];
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= o.pieces) return;
  const Piece p(c, o, i);
  if (o.x.accumulate) {
    const auto v = read_aligned<kElements>(reinterpret_cast<const T*>(o.copy + i));
    T* const to = reinterpret_cast<T*>(p.at);
#pragma unroll
    for (int k = 0; k < kElements; ++k)
      if (k * static_cast<int>(sizeof(T)) < p.left) to[k] = narrow<T>(widen(to[k]) + widen(v.get(k)));
    return;
  }
  union {
    uint4 all;
    Word words[kWords];
  } piece{o.copy[i]};
#pragma unroll
  for (int k = 0; k < kWords; ++k)
    if (k * kSize < p.left) reinterpret_cast<Word*>(p.at)[k] = piece.words[k];
}

/// The operands of one launch, before it.
class CopyList {
 public:
  CopyList(const Attend& c, std::int64_t padded) : width_(c.width()) {
    const int element = static_cast<int>(dtype_bytes(c.q.dtype()));
    copies_ = {.row = static_cast<int>(padded) * element / 16,
               .width = static_cast<int>(width_) * element,
               .element = element};
    align(width_ * element);
  }
  void add(const Heads& x, const Tensor& copy) {
    copies_.list[copies_.count++] = {.x = x,
                                     .copy = static_cast<uint4*>(copy.data()),
                                     .tokens = static_cast<int>(copy[1]),
                                     .heads = static_cast<int>(copy[2]),
                                     .pieces = static_cast<int>(copy.bytes() / 16)};
    most_ = std::max(most_, copy.bytes() / 16);
    align(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.data)));
    for (const auto apart : {x.batch, x.token, x.head}) align(apart * copies_.element);
  }
  void pad(Stream& s, const char* name) const {
    with_word([&]<class Word>() { start(s, pad_heads<Word>, name); });
  }
  void unpad(Stream& s, DType d, const char* name) const {
    with_word([&]<class Word>() {
      visit_dtype(d, [&]<class T>() {
        if constexpr (sizeof(Word) >= sizeof(T)) start(s, unpad_heads<T, Word>, name);
      });
    });
  }

 private:
  void align(std::int64_t bytes) { alignment_ |= bytes; }
  template <class F> void with_word(F&& f) const {
    if (alignment_ % 8 == 0) f.template operator()<unsigned long long>();
    else if (alignment_ % 4 == 0) f.template operator()<unsigned>();
    else f.template operator()<unsigned short>();
  }
  void start(Stream& s, void (*kernel)(Copies), const char* name) const {
    if (most_ == 0) return;
    kernel<<<dim3(blocks_for(most_, kThreads), static_cast<unsigned>(copies_.count)), kThreads, 0, queue(s)>>>(copies_);
    launched(name);
  }

  std::int64_t width_, most_ = 0, alignment_ = 0;
  Copies copies_;
};

std::int64_t padded_width(const Attend& c) {
  const std::int64_t piece = 16 / dtype_bytes(c.q.dtype());
  return (c.width() + piece - 1) / piece * piece;
}

/// The number of key heads of one sequence, with their queries, whose `sides` operands of queries and of keys each fit.
std::int64_t heads_at_once(const Attend& c, std::int64_t sides) {
  const std::int64_t rows = c.q[1] * (c.args.heads / c.kv_heads()) + c.k[1];
  return (kRoom - 256 * 2 * sides) / (rows * sides * padded_width(c) * dtype_bytes(c.q.dtype()));
}

bool of_one_type(const Attend& c) { return c.k.dtype() == c.q.dtype() && c.v.dtype() == c.q.dtype(); }

constexpr int kForwardSides = 2, kBackwardSides = 4;

template <class Call> void in_copies(Stream& s, const Call& c, void (*run)(Stream&, const Call&)) {
  constexpr bool kBackward = std::is_same_v<Call, AttendBackward>;
  const char* const name = kBackward ? "attention_backward" : "attention";
  const std::int64_t padded = padded_width(c), width = c.width(),
                     at_once = heads_at_once(c, kBackward ? kBackwardSides : kForwardSides);
  const auto even = [](std::int64_t all, std::int64_t most) {  // parts of about equal size
    const std::int64_t parts = (all + most - 1) / most;
    return (all + parts - 1) / parts;
  };
  const std::int64_t kv = c.kv_heads(), together = at_once < kv ? even(kv, at_once) : even(c.q[0], at_once / kv) * kv;
  in_parts(c, together * (c.args.heads / kv) * c.q[1], [&](const Call& part) {
    CopyList in(part, padded), out(part, padded);
    auto* next = static_cast<std::byte*>(workspace(s, 1));
    const auto copy_of = [&](CopyList& list, const auto& x, int heads) -> Tensor {
      if (!x) return {};
      const Tensor copy(next, {{x[0], x[1], heads, padded}, x.dtype()}, s.device());
      next += (copy.bytes() + 127) / 128 * 128;
      list.add(heads_of(x, width), copy);
      return copy;
    };
    const int heads = part.args.heads, kv_heads = part.kv_heads();
    Call inner = part;
    inner.args.scale = c.scale();
    inner.q = copy_of(in, part.q, heads);
    inner.k = copy_of(in, part.k, kv_heads), inner.v = copy_of(in, part.v, kv_heads);
    inner.out = copy_of(kBackward ? in : out, part.out, heads);
    if constexpr (kBackward) {
      inner.dout = copy_of(in, part.dout, heads);
      inner.dq = {copy_of(out, part.dq, heads), Write::overwrite};
      inner.dk = {copy_of(out, part.dk, kv_heads), Write::overwrite};
      inner.dv = {copy_of(out, part.dv, kv_heads), Write::overwrite};
    }
    in.pad(s, name);
    run(s, inner);
    out.unpad(s, c.q.dtype(), name);
  });
}

}  // namespace

bool padded_fits(const Attend& c) {
  const auto whole = [&](const View& x) { return heads_of(x, c.width()).whole_pieces(); };
  return c.q[1] > 1 && of_one_type(c) && heads_at_once(c, kForwardSides) > 0 &&
         !(c.width() == padded_width(c) && whole(c.q) && whole(c.k) && whole(c.v) && whole(c.out));
}
bool padded_fits(const AttendBackward& c) {
  const auto apt = [&](const View& x) { return !x || x.dtype() == c.q.dtype(); };
  const auto whole = [&](const View& x) { return !x || heads_of(x, c.width()).whole_pieces(); };
  return c.q[1] > 1 && of_one_type(c) && apt(c.dout) && apt(c.dq) && apt(c.dk) && apt(c.dv) &&
         heads_at_once(c, kBackwardSides) > 0 &&
         !(c.width() == padded_width(c) && whole(c.q) && whole(c.k) && whole(c.v) && whole(c.out) && whole(c.dout) &&
           whole(c.dq) && whole(c.dk) && whole(c.dv));
}

void attend_padded(Stream& s, const Attend& c, void (*run)(Stream&, const Attend&)) { in_copies(s, c, run); }
void attend_backward_padded(Stream& s, const AttendBackward& c, void (*run)(Stream&, const AttendBackward&)) {
  in_copies(s, c, run);
}

}  // namespace hpcdl::cuda
