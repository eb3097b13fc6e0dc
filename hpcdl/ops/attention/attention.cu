#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/cuda/launch.h"
#include "hpcdl/op.h"
#include "hpcdl/ops/attention/cudnn_attention.h"
#include "hpcdl/ops/attention/device_attention.h"

// Selects the kernel for a call.

namespace hpcdl::cuda {
namespace {

enum Candidate { kPlain, kDecode, kWgmma, kWgmmaOther, kMma, kCudnn, kCudnnAtomic, kPadded };
constexpr AttentionCandidate kNames[] = {{kPlain, "plain"},
                                         {kDecode, "decode"},
                                         {kWgmma, "wgmma"},
                                         {kWgmmaOther, "wgmma, three groups of queries"},
                                         {kMma, "mma"},
                                         {kCudnn, "cudnn"},
                                         {kCudnnAtomic, "cudnn, atomic sums"},
                                         {kPadded, "padded copies"}};

/// "own": what is preferred may be the best of our kernels, whichever that is.
constexpr int kOwn = static_cast<int>(std::size(kNames));

struct List {
  AttentionCandidate list[std::size(kNames)];
  std::size_t count = 0;
  void add(int id) { list[count++] = kNames[id]; }
  std::span<const AttentionCandidate> all() const { return {list, count}; }
};
thread_local List found;

bool fits(Stream& s, const Attend& c, int id) {
  switch (id) {
    case kPlain: return true;
    case kDecode: return decode_fits(c);
    case kWgmma:
    case kWgmmaOther: return wgmma_fits(s, c);
    case kMma: return mma_fits(s, c);
    case kCudnn: return cudnn_fits(s, c);
    case kPadded: return padded_fits(c);
    default: return false;
  }
}
bool fits(Stream& s, const AttendBackward& c, int id) {
  switch (id) {
    case kPlain: return true;
    case kWgmma: return wgmma_fits(s, c);
    case kMma: return mma_fits(s, c);
    case kCudnn: return cudnn_fits(s, c, DqSums::in_order);
    case kCudnnAtomic: return s.numerics().atomic_sums && cudnn_fits(s, c, DqSums::atomic);
    case kPadded: return padded_fits(c);
    default: return false;
  }
}

/// Three groups of queries overlap more exponentials with products; two waste less work in the diagonal tiles of a
/// short sequence and in the last wave of a small problem. H200, us (two | three), 64 wide: 64 x 12 x 1024 causal 326 |
/// 348, all keys 510 | 467, 2 x 16 x 8192 causal 660 | 566, 4 x 12 x 1024 all keys 34 | 42.
bool prefers_three(const Stream& s, const Attend& c) {
  if (c.width() > 64 || (c.q[1] < 2048 && c.args.causal)) return false;
  const auto length = [&](std::int64_t queries) {  // of all waves, in queries
    const std::int64_t tiles = c.q[0] * c.args.heads * ((c.q[1] + queries - 1) / queries), at_once = multiprocessors(s);
    return (tiles + at_once - 1) / at_once * queries;
  };
  return 0.82 * static_cast<double>(length(192)) <= static_cast<double>(length(128));
}

/// Our blocks wait for each other to sum dq in order; for wide heads and long sequences without a mask that costs more
/// than cuDNN's kernels lose elsewhere. H200, us (ours | cuDNN, atomic | cuDNN, in order, with 2 GB of scratch): 4 x 16
/// x 4096 x 128 2730 | 2488 | 2731, causal 1441 | 1478 | 1587, 8 x 16 x 2048 x 128 causal 808 | 860, 16 x 16 x 1024 x
/// 128 causal 501 | 548, 8 x 16 x 2048 x 80 1355 | 1257, 64 x 12 x 1024 x 64 causal 798 | 1027 | 1102.
bool prefers_atomic(const Stream& s, const AttendBackward& c) {
  return s.numerics().atomic_sums && !c.args.causal && c.width() > 64 && c.q[1] >= 2048;
}

/// Heads for which no wgmma kernel exists: cuDNN's kernels beat those of mma.sync, except for short sequences, whose
/// results should not depend on whether operands are aligned to 16 bytes.
bool prefers_cudnn(const Attend& c) { return c.width() > 128 && c.q[1] >= 128; }

/// cuDNN's backward in order needs enough heads at a time to occupy a good part of the GPU. H200, us (mma.sync | cuDNN in
/// order | cuDNN, atomic): 2 x 16 x 4096 causal, 144 wide 4209 | 3177 | 1617, 256 5319 | 3426 | 1848; 192 wide, all keys
/// 8597 | 4484 | 2990; 4 x 16 x 2048 x 256 causal 2873 | 1582 | 1072, 8 x 16 x 200 x 192 causal 131 | 91 | 89. With a
/// scratch for all of ds instead of two heads (144 wide: 1 GB more): 2178.
bool prefers_in_order(const Stream& s, const AttendBackward& c) {
  return prefers_cudnn(c) && (!c.args.causal || cudnn_fills_a_gpu(s, c));
}

/// Without padding, mma.sync loads single elements. H200, us, bf16 causal (elements | padded copies), forward and
/// backward: 16 x 8 x 256 x 156 370 | 45, 1336 | 171; 4 x 16 x 4096 x 100 21611 | 720, 46131 | 1907; 2 x 8 x 64 x 50
/// 32 | 10, 80 | 14; 2 x 8 x 16 x 20 15 | 9, 34 | 14.
template <class Call> bool prefers_padded(const Call& c) { return c.q[1] >= 16 && padded_fits(c); }

/// The best of our kernels.
int own_choice(Stream& s, const Attend& c) {
  if (decode_fits(c)) return kDecode;
  if (c.q[1] > 1 && wgmma_fits(s, c)) return prefers_three(s, c) ? kWgmmaOther : kWgmma;
  if (prefers_padded(c)) return kPadded;
  return mma_fits(s, c) ? kMma : kPlain;
}
int own_choice(Stream& s, const AttendBackward& c) {
  if (wgmma_fits(s, c)) return kWgmma;
  if (prefers_padded(c)) return kPadded;
  return mma_fits(s, c) ? kMma : kPlain;
}

/// A call of Attend or AttendBackward as choose_way() sees it.
template <class Operands> struct AttentionCall {
  Stream& s;
  const Operands& c;
  AttentionShape shape = shape_of(s, c);

  std::string_view op() const { return only_choice() ? "attention_decode" : shape.op(); }
  static std::string_view family() { return "attention"; }
  auto fields() const { return fields_of(shape); }
  static std::string_view name(int id) { return kNames[id].name; }
  static int number(std::string_view name) {
    if (name == "own") return kOwn;
    const auto* found =
        std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& c) { return c.name == name; });
    return found == std::end(kNames) ? -1 : found->id;
  }
  bool fits(int id) const { return cuda::fits(s, c, id); }
  int preferred(int id) const {
    if (id == kOwn) return own_choice(s, c);
    if (id == kCudnn && fits(kCudnnAtomic)) return kCudnnAtomic;
    return fits(id) ? id : -1;
  }
  int built_in() const { return attention_choice(s, c); }
  std::string words() const { return fmt::format("{} {} {}", op(), unit_name(unit_of(shape.dtype)), words_of(shape)); }
  std::any operands() const {
    return shape.aligned && c.plain_scores() && !only_choice() ? std::any(shape) : std::any();
  }
  /// With one query there is only one kernel of ours.
  bool only_choice() const { return shape.queries == 1; }
};

/// For padded copies, which are a call of their own.
template <class Call> void run_chosen(Stream& s, const Call& c) {
  if (c.documents) return attend_documents(s, c);
  attention_with(s, c, choose_way(AttentionCall<Call>{s, c}));
}

}  // namespace

std::vector<std::string_view> attention_ways() {
  std::vector<std::string_view> names;
  for (const auto& way : kNames) names.push_back(way.name);
  names.push_back("own");
  return names;
}

std::span<const AttentionCandidate> attention_candidates(Stream& s, const Attend& c) {
  found.count = 0;
  if (wgmma_fits(s, c)) found.add(kWgmma), found.add(kWgmmaOther);
  if (decode_fits(c)) found.add(kDecode);
  if (mma_fits(s, c)) found.add(kMma);
  if (cudnn_fits(s, c)) found.add(kCudnn);
  if (padded_fits(c)) found.add(kPadded);
  found.add(kPlain);
  return found.all();
}
std::span<const AttentionCandidate> attention_candidates(Stream& s, const AttendBackward& c) {
  found.count = 0;
  if (wgmma_fits(s, c)) found.add(kWgmma);
  if (mma_fits(s, c)) found.add(kMma);
  for (const int id : {kCudnn, kCudnnAtomic})
    if (fits(s, c, id)) found.add(id);
  if (padded_fits(c)) found.add(kPadded);
  found.add(kPlain);
  return found.all();
}

void attention_with(Stream& s, const Attend& c, int candidate) {
  switch (candidate) {
    case kPlain: return attend_plain(s, c);
    case kDecode: return attend_decode(s, c);
    case kMma: return attend_mma(s, c);
    case kCudnn: return attend_cudnn(s, c);
    case kPadded: return attend_padded(s, c, run_chosen<Attend>);
    default: return attend_wgmma(s, c, candidate - kWgmma);
  }
}
void attention_with(Stream& s, const AttendBackward& c, int candidate) {
  switch (candidate) {
    case kPlain: return attend_backward_plain(s, c);
    case kMma: return attend_backward_mma(s, c);
    case kCudnn: return attend_backward_cudnn(s, c, DqSums::in_order);
    case kCudnnAtomic: return attend_backward_cudnn(s, c, DqSums::atomic);
    case kPadded: return attend_backward_padded(s, c, run_chosen<AttendBackward>);
    default: return attend_backward_wgmma(s, c);
  }
}

int attention_choice(Stream& s, const Attend& c) {
  const int own = own_choice(s, c);
  return (own == kMma || own == kPlain || own == kPadded) && prefers_cudnn(c) && fits(s, c, kCudnn) ? kCudnn : own;
}
int attention_choice(Stream& s, const AttendBackward& c) {
  if ((prefers_atomic(s, c) || prefers_cudnn(c)) && fits(s, c, kCudnnAtomic)) return kCudnnAtomic;
  if (prefers_in_order(s, c) && fits(s, c, kCudnn)) return kCudnn;
  return own_choice(s, c);
}

void attend_documents(Stream& s, const Attend& c) { attention_with(s, c, own_choice(s, c)); }
void attend_documents(Stream& s, const AttendBackward& c) { attention_with(s, c, own_choice(s, c)); }

void attention(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Attention::Args& a) {
  if (q.size() == 0) return;
  const Attend c{out, lse, q, k, v, scratch, a};
  attention_with(s, c, choose_way(AttentionCall<Attend>{s, c}));
}

void attention_backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout,
                        Tensor scratch, const Attention::Args& a) {
  if (q.size() == 0) return;
  const AttendBackward c{{out, lse, q, k, v, scratch, a}, dq, dk, dv, dout};
  attention_with(s, c, choose_way(AttentionCall<AttendBackward>{s, c}));
}

}  // namespace hpcdl::cuda
