#pragma once
// A step around the ring of the ranks of an axis: every rank sends a tensor to the rank `distance` places after it, and
// receives one of the same shape. On another lane than `compute` it goes on while later records run.

#include "hpcdl/program/axis.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {

/// A raw record: operands `theirs`, `mine`. Each rank sends the bytes of one of them.
struct Rotate {
  static constexpr std::string_view name = "rotate";
  struct RecordArgs {
    Axis axis;
    int distance = 1;  // 1 .. ranks - 1
    bool valid() const { return axis.valid() && distance >= 1 && distance < axis.ranks; }
  };
  static void check_record(const RawRecord& r);
  static std::vector<Exchange> exchanges(std::span<const Spec> operands, const void* args);
  static void run(Stream& s, const Grad* t, const void* args) { start(s, t, args).wait(); }
  static Ticket start(Stream& s, const Grad* t, const void* args);
};

/// Records it on the lane of g.
template <class G>
void emit_rotate(G& g, const Operand& theirs, const Operand& mine, const Axis& axis, int distance, Phase phase) {
  Operand pair[] = {theirs, mine};
  pair[0].access = Access::write, pair[1].access = Access::read;
  Rotate::RecordArgs args{axis, distance};
  clear_padding(args);
  g.template emit<Rotate>(pair, &args, sizeof args, {}, phase, &args.axis);
}

}  // namespace hpcdl
