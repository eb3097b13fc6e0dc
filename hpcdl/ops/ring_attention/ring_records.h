#pragma once
// Records the steps of ops/ring_attention, forward and backward.

#include <array>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/ops/attention_merge/attention_merge.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/exchange/rotate.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/ring_attention/attention_part.h"
#include "hpcdl/ops/ring_attention/ring_plan.h"

namespace hpcdl {

struct RingArgs {
  Axis axis;
  int rank = 0;
  bool zigzag = true;  // as in RingPlan
  int heads = 1;
  int kv_heads = 0;  // 0: equal to heads
  float scale = 0;   // as in Attention::Args, and so are the next two
  float cap = 0;
  std::int64_t window = 0;
  bool valid() const { return axis.valid() && valid_args(zigzag) && rank >= 0 && rank < axis.ranks; }

  RingPlan plan(std::int64_t tokens) const { return {axis.ranks, zigzag, tokens, window}; }
  /// The arguments of a part of the attention.
  Attention::Args of(const RingPlan::Pair& p) const {
    return {heads, kv_heads, p.causal, scale, cap, p.window, p.ahead};
  }
};

template <class G> class RingRecords {
 public:
  RingRecords(G& g, const RingArgs& a, const Spec& q, const Spec& k, Phase phase)
      : g_(g),
        args_(a),
        phase_(phase),
        batch_(q[0] / 2),
        type_(q.dtype),
        packed_{{4 * batch_, k[1], k[2]}, k.dtype},
        plan_(a.plan(q[1])),
        last_(plan_.last_step()) {}

  void forward(const Operand& out, const Operand& lse, const Operand& q, const Operand& k, const Operand& v) {
    const bool exact = type_ == DType::f32;
    const Operand sum = exact ? out : temporary("ring.sum", {out.spec.shape, DType::f32});
    std::array<bool, 2> begun{};
    travel({k, v}, [&](int step, const Keys& kv) {
      for (const auto& pair : plan_.pairs(args_.rank, step)) {
        const auto chunk = static_cast<std::size_t>(pair.query);
        const Operand queries = first_tokens(of_chunk(q, pair.query), 1, pair.rows);
        const Operand to = of_chunk(sum, pair.query), to_lse = of_chunk(lse, pair.query);
        if (std::exchange(begun[chunk], true)) merge(to, to_lse, queries, kv, pair);
        else begin(to, to_lse, queries, kv, pair);
      }
    });
    if (!exact) emit<Cast>({written(out), sum}, {type_});
  }

  /// o: dq, dk, dv, q, k, v, out, lse, dout.
  void backward(std::span<const Operand> o) {
    const bool sums = o[1].slot >= 0 || o[2].slot >= 0;  // gradients of keys or values are wanted
    dq_begun_ = {};
    Sums mine = sums ? Sums{temporary("ring.own", packed_)} : Sums();
    Operand arrived;  // sums from the rank before
    std::vector<RingPlan::Pair> late;
    travel({o[4], o[5]}, [&](int step, const Keys& kv) {
      auto pairs = plan_.pairs(args_.rank, step);
      if (step == 0) {  // some of the own pairs are left for the time when the last sums travel
        std::erase_if(pairs, [&](const auto& p) { return !p.causal && (late.push_back(p), true); });
        for (const auto& p : pairs) gradients(o, kv, p, mine);
        return;
      }
      Sums here = sums ? Sums{temporary("ring.here", packed_)} : Sums();
      for (const auto& p : pairs) gradients(o, kv, p, here);
      if (sums) arrived = rotated(added(here, arrived), step < last_ ? 1 : args_.axis.ranks - last_);
    });
    for (const auto& p : late) gradients(o, {o[4], o[5]}, p, mine);
    if (!sums) return;
    if (last_ > 0) add(mine.to, arrived);
    give(o[1], half(mine.to, 0)), give(o[2], half(mine.to, 1));
  }

 private:
  /// Both chunks of keys and of values, (2 B, n, Hkv*D) each.
  struct Keys {
    Operand k, v;
  };
  /// Gradients of two chunks of keys and of values, and which chunks have any so far.
  struct Sums {
    Operand to = {};
    std::array<bool, 2> begun = {};
  };

  // -- operands
  static Operand rows(Operand o, std::int64_t begin, std::int64_t count) {
    if (o.slot < 0) return o;
    o.offset += begin * o.strides[0], o.spec.shape[0] = count;
    return o;
  }
  /// A chunk of a tensor of all queries.
  Operand of_chunk(const Operand& o, int chunk) const { return rows(o, chunk * batch_, batch_); }
  static Operand first_tokens(Operand o, int dim, std::int64_t count) {
    if (o.slot >= 0) o.spec.shape[dim] = count;
    return o;
  }
  /// Both chunks of the keys (0) or values (1) of a packed tensor, (4 B, n, Hkv*D).
  Operand half(const Operand& packed, int which) const { return rows(packed, which * 2 * batch_, 2 * batch_); }
  Operand part_of(const Operand& packed, int which, int chunk) const { return of_chunk(half(packed, which), chunk); }

  static Operand read(Operand o) {
    o.access = Access::read;
    return o;
  }
  static Operand written(Operand o) {
    o.access = Access::write;
    return o;
  }
  static Operand updated(Operand o) {
    o.access = Access::update;
    return o;
  }
  Operand temporary(std::string name, const Spec& spec) { return read_operand(g_.temporary(std::move(name), spec)); }

  // -- records
  template <class Op> void emit(std::initializer_list<Operand> operands, const typename Op::Args& a) {
    emit_op<Op>(g_, std::span(operands.begin(), operands.size()), a, phase_);
  }

  Operand packed(const Keys& kv) {
    const Operand to = temporary("ring.keys", packed_);
    emit<DivideColumns>({written(half(to, 0)), read(kv.k)}, {1});
    emit<DivideColumns>({written(half(to, 1)), read(kv.v)}, {1});
    return to;
  }

  /// f(step, the keys and values that are there), first those of this rank; the next ones travel meanwhile.
  template <class F> void travel(const Keys& own, F&& f) {
    if (last_ == 0) return f(0, own);
    Operand sent = packed(own);
    for (int step = 0; step <= last_; ++step) {
      const Keys here{half(sent, 0), half(sent, 1)};
      Operand next;
      if (step < last_) {
        next = temporary("ring.keys", packed_);
        const typename G::OnLane lane(g_, Lane::gather);
        emit_rotate(g_, next, sent, args_.axis.with("keys and values"), 1, phase_);
      }
      f(step, here);
      sent = next;
    }
  }
  Operand rotated(const Operand& sums, int distance) {
    const Operand theirs = temporary("ring.sums", packed_);
    const typename G::OnLane lane(g_, Lane::reduce);
    emit_rotate(g_, theirs, sums, args_.axis.with("gradients of keys and values"), distance, phase_);
    return theirs;
  }

  /// The attention of some queries to a chunk of keys.
  void attend(const Operand& out, const Operand& lse, const Operand& q, const Keys& kv, const RingPlan::Pair& p) {
    const Operand k = of_chunk(kv.k, p.key), v = of_chunk(kv.v, p.key);
    const auto a = args_.of(p);
    const Operand operands[AttentionPart::kOperands] = {written(out), written(lse), read(q), read(k), read(v)};
    g_.template emit<AttentionPart>(operands, &a, sizeof a, Attention::cost(q.spec, k.spec, v.spec, a), phase_);
  }
  void begin(const Operand& sum, const Operand& lse, const Operand& q, const Keys& kv, const RingPlan::Pair& p) {
    const Operand out = type_ == DType::f32 ? sum : temporary("ring.part", q.spec);
    attend(out, lse, q, kv, p);
    if (type_ != DType::f32) emit<Cast>({written(sum), read(out)}, {DType::f32});
  }
  void merge(const Operand& sum, const Operand& lse, const Operand& q, const Keys& kv, const RingPlan::Pair& p) {
    const Operand out = temporary("ring.part", q.spec);
    const Operand of_part = temporary("ring.part.lse", {{batch_, args_.heads, p.rows}, DType::f32});
    attend(out, of_part, q, kv, p);
    emit<AttentionMerge>({written(sum), written(lse), read(sum), read(lse), read(out), read(of_part)}, {});
  }

  /// What a pair contributes to dq, and to the gradients of its chunk of keys.
  void gradients(std::span<const Operand> o, const Keys& kv, const RingPlan::Pair& p, Sums& to) {
    const auto query = static_cast<std::size_t>(p.query), key = static_cast<std::size_t>(p.key);
    const auto tokens = [&](const Operand& x, int dim) { return first_tokens(of_chunk(x, p.query), dim, p.rows); };
    const Operand q = read(tokens(o[3], 1)), k = of_chunk(kv.k, p.key), v = of_chunk(kv.v, p.key);
    Operand dq = tokens(o[0], 1), dk, dv;
    if (std::exchange(dq_begun_[query], true)) dq.access = Access::update;
    if (to.to.slot >= 0) {
      const auto access = std::exchange(to.begun[key], true) ? Access::update : Access::write;
      dk = part_of(to.to, 0, p.key), dv = part_of(to.to, 1, p.key);
      dk.access = dv.access = access;
    }
    const auto a = args_.of(p);
    const Operand scratch = temporary("scratch", Attention::backward_scratch(q.spec, k.spec, v.spec, a)[0]);
    const Operand operands[AttentionPartGradient::kOperands] = {dq,
                                                                dk,
                                                                dv,
                                                                q,
                                                                read(k),
                                                                read(v),
                                                                read(tokens(o[6], 1)),
                                                                read(tokens(o[7], 2)),
                                                                read(tokens(o[8], 1)),
                                                                written(scratch)};
    Cost stated = Attention::backward_cost(q.spec, k.spec, v.spec, a);
    stated.writes -= static_cast<double>(scratch.spec.bytes());
    g_.template emit<AttentionPartGradient>(operands, &a, sizeof a, stated, phase_);
  }

  /// The sums so far with those of this rank.
  Operand added(const Sums& here, const Operand& arrived) {
    for (int which = 0; which < 2; ++which)
      for (int chunk = 0; chunk < 2; ++chunk) {
        const Operand mine = part_of(here.to, which, chunk);
        const bool begun = here.begun[static_cast<std::size_t>(chunk)];
        if (arrived.slot < 0 && !begun) emit<Fill>({written(mine)}, {0});
        if (arrived.slot >= 0 && begun) add(part_of(arrived, which, chunk), mine);
      }
    return arrived.slot < 0 ? here.to : arrived;
  }
  void add(const Operand& to, const Operand& from) {
    const Operand pair[] = {updated(to), read(from)};
    g_.template emit<AddInto>(pair, nullptr, 0, AddInto::cost(to.spec), phase_);
  }
  /// A gradient that the graph has asked for, if it has.
  void give(const Operand& to, const Operand& from) {
    if (to.slot < 0) return;
    if (to.access == Access::update) add(to, from);
    else emit<JoinColumns>({written(to), read(from)}, {to.spec[-1], 1, 1});
  }

  G& g_;
  RingArgs args_;
  Phase phase_;
  std::int64_t batch_;
  DType type_;
  Spec packed_;  // of keys and values: both chunks of the keys of all sequences, and of the values
  RingPlan plan_;
  int last_;
  std::array<bool, 2> dq_begun_{};
};

}  // namespace hpcdl
