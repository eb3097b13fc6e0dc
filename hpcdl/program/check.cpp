#include "hpcdl/program/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "hpcdl/core/describe.h"

namespace hpcdl {
namespace {

class Check {
 public:
  explicit Check(const Program& p) : p_(p) {
    for (const auto& r : p.records) rooms_[r.args] = 0;
    for (auto it = rooms_.begin(); it != rooms_.end(); ++it) {
      const auto next = std::next(it);
      it->second = (next == rooms_.end() ? p.args.size() : next->first) - it->first;
    }
  }

  void run() {
    std::set<std::uint32_t> bounds;
    for (const auto& r : p_.records) {
      const auto f = function_of(r.op, r.backward);
      require(rooms_.at(r.args) >= f.args_bytes, r.op, "its arguments overlap those of another record");
      if (f.bound) {
        auto* args = const_cast<std::byte*>(p_.args.data() + r.args);
        bounds.insert(r.args + static_cast<std::uint32_t>(reinterpret_cast<std::byte*>(f.bound(args)) - args));
      }
      if (f.valid) require(f.valid(args_of(r)), r.op, "an argument has none of the values that it can have");
      if (f.check) f.check(RawRecord(r.op, operands(r), std::span(p_.args).subspan(r.args, rooms_.at(r.args))));
      else if (!f.info) fail(r.op, "nothing is known of its operands: such records cannot be read");
      else if (r.backward) backward(*f.info, r);
      else forward(*f.info, r);
    }
    require(std::ranges::equal(bounds, std::set(p_.bounds.begin(), p_.bounds.end())), "program",
            "its list of names is another one than that of its records");
  }

 private:
  const void* args_of(const Record& r) const { return p_.args.data() + r.args; }
  std::span<const Operand> operands(const Record& r) const {
    return std::span(p_.operands).subspan(r.operands, r.operand_count);
  }
  static Spec spec_of(const Operand& o) { return o.slot < 0 ? Spec() : o.spec; }
  static void expect(const OpInfo& op, bool ok, std::string_view what, std::size_t i, const Spec& got) {
    require(ok, op.name, "{} {} does not fit its other operands, got {}", what, i, to_string(got));
  }

  /// Kernels trust what they have written to scratch, so no other record may use it.
  void scratch(const OpInfo& op, const Record& r, std::size_t at, const Spec& want) const {
    const auto list = operands(r);
    const auto& o = list[at];
    expect(op, spec_of(o) == want && o.access == Access::write, "scratch", at, spec_of(o));
    if (o.slot < 0) return;
    const auto& slot = p_.slots[static_cast<std::size_t>(o.slot)];
    const auto uses = std::ranges::count(list, o.slot, &Operand::slot);
    expect(op, slot.role == SlotRole::scratch && slot.kind == SlotKind::temp && uses == 1, "scratch", at, o.spec);
  }

  void forward(const OpInfo& op, const Record& r) {
    const auto list = operands(r);
    const auto n_in = static_cast<std::size_t>(op.n_in), n_out = static_cast<std::size_t>(op.n_out);
    require(list.size() >= n_in + n_out, op.name, "{} operands are too few", list.size());
    std::vector<Spec> in;
    for (const auto& o : list.subspan(n_out, n_in)) {
      in.push_back(spec_of(o));
      expect(op, o.access == Access::read, "input", in.size() - 1, in.back());
    }
    Spec out[OpInfo::kMaxOut], more[OpInfo::kMaxScratch];
    op.infer(in.data(), args_of(r), out);
    const int n_more = op.scratch ? op.scratch(in.data(), args_of(r), more) : 0;
    require(list.size() == n_in + n_out + static_cast<std::size_t>(n_more), op.name, "{} operands are too many",
            list.size());
    for (std::size_t i = 0; i < n_out; ++i) {
      const bool may_lack = i >= n_out - static_cast<std::size_t>(op.n_aux);
      const auto got = spec_of(list[i]);
      expect(op, (got == out[i] || (may_lack && !got)) && list[i].access == Access::write, "output", i, got);
    }
    for (int i = 0; i < n_more; ++i) scratch(op, r, n_in + n_out + static_cast<std::size_t>(i), more[i]);
    forwards_[{r.op.number(), r.args}].push_back(&r);
  }

  /// Compares operand `got` of a backward record with that of the corresponding forward record.
  static bool is(const Operand& got, const Operand& of) {
    return (got.slot < 0) == (of.slot < 0) && spec_of(got) == spec_of(of) && got.access == Access::read;
  }

  bool was_written(const std::vector<const Record*>& forwards, std::size_t out, const Operand& o) const {
    return o.slot < 0 || std::ranges::any_of(
                             forwards,
                             [&](const Record* f) {
                               const auto& other = operands(*f)[out];
                               return other.slot == o.slot && other.offset == o.offset;
                             });
  }

  void backward(const OpInfo& op, const Record& r) const {
    const auto list = operands(r);
    const auto found = forwards_.find({r.op.number(), r.args});
    require(found != forwards_.end() && list.size() == op.backward_operands.size(), op.name,
            "a backward record with {} operands belongs to no forward record in front of it", list.size());
    const auto of = operands(*found->second.back());
    const auto outs = of.first(static_cast<std::size_t>(op.n_out));
    const auto ins = of.subspan(outs.size(), static_cast<std::size_t>(op.n_in));
    std::vector<Spec> in;
    for (const auto& o : ins) in.push_back(spec_of(o));
    Spec more[OpInfo::kMaxScratch];
    if (op.backward_scratch) op.backward_scratch(in.data(), args_of(r), more);
    bool has_gradient = false;
    for (std::size_t k = 0; k < list.size(); ++k) {
      const auto& o = list[k];
      const auto [kind, index] = op.backward_operands[k];
      const auto i = static_cast<std::size_t>(index);
      const auto got = spec_of(o);
      switch (kind) {
        case OperandKind::in: expect(op, is(o, ins[i]), "input", i, got); break;
        case OperandKind::out:  // memory that forward wrote: indices, statistics
          expect(op, is(o, outs[i]) && was_written(found->second, i, o), "output", i, got);
          break;
        case OperandKind::grad_out:
          has_gradient |= o.slot >= 0;
          expect(op, !got || (got == spec_of(outs[i]) && o.access == Access::read), "gradient of output", i, got);
          break;
        case OperandKind::grad_in:
          expect(op,
                 !got || (got.shape == in[i].shape && (got.dtype == in[i].dtype || got.dtype == DType::f32) &&
                          o.access != Access::read),
                 "gradient of input", i, got);
          break;
        case OperandKind::scratch: scratch(op, r, k, more[i]); break;
      }
    }
    require(has_gradient, op.name, "no output has a gradient");
  }

  const Program& p_;
  std::map<std::uint32_t, std::size_t> rooms_;  // sizes in bytes of arguments, by their offset
  std::map<std::pair<std::uint16_t, std::uint32_t>, std::vector<const Record*>>
      forwards_;  // by op and arguments: the first record, and those that recompute it
};

}  // namespace

void check_records(const Program& program) { Check(program).run(); }

}  // namespace hpcdl
