#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/attention/device_attention.h"

// Which kernel serves a call.

namespace hpcdl::cuda {
namespace {

enum Candidate { kPlain, kDecode, kWgmma, kWgmmaOther, kMma };
constexpr AttentionCandidate kNames[] = {{kPlain, "plain"}, {kDecode, "decode"}, {kWgmma, "wgmma"}, {kWgmmaOther, "wgmma, three groups of queries"},
                                          {kMma, "mma"}};

AttentionChooser chooser;

struct List {
  AttentionCandidate list[std::size(kNames)];
  std::size_t count = 0;
  void add(int id) { list[count++] = kNames[id]; }
  std::span<const AttentionCandidate> all() const { return {list, count}; }
};
thread_local List found;

/// Three groups of queries exponentiate more while others multiply; two waste less of the tiles on the diagonal of a short sequence, and of the last round of
/// tiles of a small problem. H200, us (two | three), 64 wide: 64 x 12 x 1024 causal 326 | 348, all keys 510 | 467, 2 x 16 x 8192 causal 660 | 566,
/// 4 x 12 x 1024 all keys 34 | 42.
bool prefers_three(const Stream& s, const Attend& c) {
  if (c.width() > 64 || (c.q[1] < 2048 && (c.args.causal || c.args.cached))) return false;
  const auto length = [&](std::int64_t queries) {  // of all rounds, in queries
    const std::int64_t tiles = c.q[0] * c.args.heads * ((c.q[1] + queries - 1) / queries), at_once = multiprocessors(s);
    return (tiles + at_once - 1) / at_once * queries;
  };
  return 0.82 * static_cast<double>(length(192)) <= static_cast<double>(length(128));
}

}  // namespace

std::span<const AttentionCandidate> attention_candidates(Stream& s, const Attend& c) {
  found.count = 0;
  if (wgmma_fits(s, c)) found.add(kWgmma), found.add(kWgmmaOther);
  if (decode_fits(c)) found.add(kDecode);
  if (mma_fits(s, c)) found.add(kMma);
  found.add(kPlain);
  return found.all();
}
std::span<const AttentionCandidate> attention_candidates(Stream& s, const AttendBackward& c) {
  found.count = 0;
  if (wgmma_fits(s, c)) found.add(kWgmma);
  if (mma_fits(s, c)) found.add(kMma);
  found.add(kPlain);
  return found.all();
}

void attention_with(Stream& s, const Attend& c, int candidate) {
  switch (candidate) {
    case kPlain: return attend_plain(s, c);
    case kDecode: return attend_decode(s, c);
    case kMma: return attend_mma(s, c);
    default: return attend_wgmma(s, c, candidate - kWgmma);
  }
}
void attention_with(Stream& s, const AttendBackward& c, int candidate) {
  if (candidate == kPlain) attend_backward_plain(s, c);
  else if (candidate == kMma) attend_backward_mma(s, c);
  else attend_backward_wgmma(s, c);
}

int attention_choice(Stream& s, const Attend& c) {
  if (decode_fits(c)) return kDecode;
  if (c.q[1] > 1 && wgmma_fits(s, c)) return prefers_three(s, c) ? kWgmmaOther : kWgmma;
  return mma_fits(s, c) ? kMma : kPlain;
}
int attention_choice(Stream& s, const AttendBackward& c) { return wgmma_fits(s, c) ? kWgmma : mma_fits(s, c) ? kMma : kPlain; }

void set_attention_chooser(AttentionChooser c) { chooser = c; }

void attention(Stream& s, Tensor out, Tensor lse, View q, View k, View v, Tensor scratch, const Attention::Args& a) {
  if (q.size() == 0) return;
  const Attend c{out, lse, q, k, v, scratch, a};
  const int chosen = chooser.forward ? chooser.forward(c) : -1;
  attention_with(s, c, chosen >= 0 ? chosen : attention_choice(s, c));
}

void attention_backward(Stream& s, Grad dq, Grad dk, Grad dv, View q, View k, View v, View out, View lse, View dout, Tensor scratch,
                        const Attention::Args& a) {
  if (q.size() == 0) return;
  AttendBackward c{{out, lse, q, k, v, scratch, a}, dq, dk, dv, dout};
  const int chosen = chooser.backward ? chooser.backward(c) : -1;
  attention_with(s, c, chosen >= 0 ? chosen : attention_choice(s, c));
}

}  // namespace hpcdl::cuda
