#pragma once
// The minimum work of a record. The speed of light follows from it (lab/light.h).

#include <cstdint>
#include <string_view>

#include "hpcdl/core/dtype.h"

namespace hpcdl {

/// The unit that performs a record's arithmetic. One unit per record is sufficient: if it has products, they account
/// for nearly all operations; everything else is computed in f32 for every storage type. exp and tanh count as
/// operations in f32, because no separate roof is measured for them.
enum class Unit : std::uint8_t { none, f32, tf32, bf16, f16, i8 };
inline constexpr std::string_view kUnitNames[] = {"-", "f32", "tf32", "bf16", "f16", "i8"};
constexpr std::string_view unit_name(Unit u) { return kUnitNames[static_cast<int>(u)]; }
/// For products of such operands.
constexpr Unit unit_of(DType d) { return d == DType::bf16 ? Unit::bf16 : d == DType::f16 ? Unit::f16 : Unit::f32; }

/// Bytes count once for each transfer to or from main memory that a record requires.
///
/// An op's `cost(specs, args)` and `backward_cost(specs, args)` also return a Cost: the operations, and everything that
/// does not follow from the operands. Their bytes are added to those of the operands (whole_cost() in program.h), and
/// may be negative: rows that a gather skips, a causal half, a second pass. Their unit may be `none`: it then follows
/// from the operands.
struct Cost {
  double operations = 0;   // a multiply-add counts as two
  Unit unit = Unit::none;  // none: no operations
  double reads = 0;        // bytes that are read and not written
  double writes = 0;       // bytes that are written and not read
  double updates = 0;      // bytes that are read and written in place
  double wire = 0;         // bytes that this rank sends to others, as ring algorithms do

  /// Total traffic to and from main memory.
  double bytes() const { return reads + writes + 2 * updates; }
  /// The size of the memory that is accessed.
  double footprint() const { return reads + writes + updates; }
  /// Sums the costs of a whole program; the unit does not change.
  Cost& operator+=(const Cost& o) {
    operations += o.operations;
    reads += o.reads, writes += o.writes, updates += o.updates;
    wire += o.wire;
    return *this;
  }
};

}  // namespace hpcdl
