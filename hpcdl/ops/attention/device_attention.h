#pragma once
// The ways to compute attention on a GPU, with one entry point.

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/packed_attention/packed_attention.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"

namespace hpcdl::cuda {

/// Rows that hold several documents: where the document of each token begins, and where it ends. Both i32 (B, T).
struct DocumentBounds {
  View begins, ends;

  explicit operator bool() const { return static_cast<bool>(begins); }
};

/// The operands of a forward call. With documents, T = S, and a query sees only keys of its own.
struct Attend {
  View out, lse, q, k, v;
  Tensor scratch;
  Attention::Args args;
  DocumentBounds documents = {};

  int kv_heads() const { return args.kv_heads > 0 ? args.kv_heads : args.heads; }
  std::int64_t width() const { return q.rank() == 4 ? q[3] : q[2] / args.heads; }
  /// Neither a window nor a cap.
  bool plain_scores() const { return args.window == 0 && args.cap == 0; }
  float scale() const { return args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(width())); }
};
/// The operands of a backward call: `scratch` is the scratch of backward.
struct AttendBackward : Attend {
  Grad dq, dk, dv;
  View dout;
};

/// The operands of paged_attention().
struct PagedAttend {
  View out, q, k, v, starts, lengths, pages;
  Tensor scratch;
  PagedAttention::Args args;

  std::int64_t most_queries() const { return args.most(q.spec()); }
  /// Queries and result of one sequence with all rows; k and v only give the types and sizes.
  Attend packed() const {
    return {out,
            {},
            q,
            k,
            v,
            {},
            {.heads = args.heads,
             .kv_heads = static_cast<int>(k[1]),
             .scale = args.scale,
             .cap = args.cap,
             .window = args.window}};
  }
};

/// The operands of packed_attention().
struct PackedAttend {
  View out, q, k, v, starts;
  PackedAttention::Args args;

  std::int64_t sequences() const { return starts[0] - 1; }
  std::int64_t longest() const { return args.longest(q.spec()); }
  /// One sequence with all rows.
  Attend whole() const {
    return {
        out, {}, q, k, v, {}, {.heads = args.heads, .kv_heads = args.kv_heads, .causal = false, .scale = args.scale}};
  }
};

/// A call without its memory.
struct AttentionShape {
  std::int64_t batch, queries, keys, heads, kv_heads, width;
  bool causal, aligned;  // aligned: all operands at multiples of 16 bytes
  DType dtype;
  float scale;
  bool backward = false;
  bool atomic = false;  // gradients may be summed in any order
  std::string_view op() const { return backward ? "attention_backward" : "attention"; }
};
AttentionShape shape_of(const Stream& s, const Attend& c);
AttentionShape shape_of(const Stream& s, const AttendBackward& c);
/// The properties of a call that determine its ways: those of its key (core/ways.h).
std::array<std::int64_t, 10> fields_of(const AttentionShape& s);
/// Sizes and mask, for people.
std::string words_of(const AttentionShape& s);

/// A way to compute it: a kernel with its tiles, or cuDNN. All give results within the same bounds, each its own bits;
/// each repeats them, but for the one with "atomic" in its name, whose dq differs from run to run; it is there only
/// where Numerics::atomic_sums allows it.
struct AttentionCandidate {
  int id;
  std::string_view name;
};

/// The candidates for this call on the stream's GPU. Valid until the calling thread's next call.
std::span<const AttentionCandidate> attention_candidates(Stream& s, const Attend& c);
std::span<const AttentionCandidate> attention_candidates(Stream& s, const AttendBackward& c);
/// Runs one of them.
void attention_with(Stream& s, const Attend& c, int candidate);
void attention_with(Stream& s, const AttendBackward& c, int candidate);
/// The candidate used unless the stream's table says one that can compute the call: under "attention" or
/// "attention_backward", or for all calls under "attention", where "own" is the best of our kernels, and "cudnn" sums
/// gradients in any order where Numerics::atomic_sums allows it.
int attention_choice(Stream& s, const Attend& c);
int attention_choice(Stream& s, const AttendBackward& c);
/// Runs the choice of a call with documents, which asks no table.
void attend_documents(Stream& s, const Attend& c);
void attend_documents(Stream& s, const AttendBackward& c);
/// The names of all ways, by id; and "own".
std::vector<std::string_view> attention_ways();

// ---------------------------------------------------------------- the kernels, each in its own file

/// Any width, stride and type: plain.cu.
void attend_plain(Stream& s, const Attend& c);
void attend_plain(Stream& s, const PagedAttend& c);
void attend_plain(Stream& s, const PackedAttend& c);
void attend_backward_plain(Stream& s, const AttendBackward& c);

/// One query per sequence, keys divided among blocks: decode.cu.
bool decode_fits(const Attend& c);
void attend_decode(Stream& s, const Attend& c);
void attend_decode(Stream& s, const PagedAttend& c);

/// Tensor cores from sm_80 on: any type, stride and width; f32 as Numerics::products says: mma_forward.cu,
/// mma_backward.cu.
bool mma_fits(const Stream& s, const Attend& c);
bool mma_fits(const Stream& s, const AttendBackward& c);
bool mma_fits(const Stream& s, const PagedAttend& c);
bool mma_fits(const Stream& s, const PackedAttend& c);
void attend_mma(Stream& s, const Attend& c);
void attend_mma(Stream& s, const PagedAttend& c);
void attend_mma(Stream& s, const PackedAttend& c);
void attend_backward_mma(Stream& s, const AttendBackward& c);

/// Hopper's tensor cores: 16-bit operands of widths up to 128 that are multiples of 8, in tiles 64 or 128 wide (f16
/// backward: only 64 and 128): wgmma.cu. `shape` numbers the tile shapes of a width.
bool wgmma_fits(const Stream& s, const Attend& c);
bool wgmma_fits(const Stream& s, const AttendBackward& c);
inline constexpr int kForwardShapes = 2;
void attend_wgmma(Stream& s, const Attend& c, int shape);
void attend_backward_wgmma(Stream& s, const AttendBackward& c);

/// More than one query; operands of one type whose rows are not whole 16-byte pieces: copies with padded rows, for
/// which `run` computes: padded.cu.
bool padded_fits(const Attend& c);
bool padded_fits(const AttendBackward& c);
void attend_padded(Stream& s, const Attend& c, void (*run)(Stream&, const Attend&));
void attend_backward_padded(Stream& s, const AttendBackward& c, void (*run)(Stream&, const AttendBackward&));

}  // namespace hpcdl::cuda
