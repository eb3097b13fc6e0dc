#pragma once
// The ways in which a GPU can multiply by 4-bit weights, for code that chooses among them by measurement (tools/tune).
// All of them give results within the same bounds, with different bits; each is reproducible bit for bit.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "hpcdl/ops/int4_linear/int4_linear.h"

namespace hpcdl::cuda {

struct Int4Way {
  int id;
  std::string_view name;  // describes a block: rows of W x rows of x, warps, chunks in flight
  bool widened = false;   // not exact: x is not rounded, weights are rounded to bf16
};

/// The properties on which the choice of a way depends.
struct Int4Shape {
  std::int64_t rows, n, k, group;
  bool exact = false;
  bool constant = false;  // Int4Linear::Args::constant_weights
  // Whether type and place of the operands allow weights that are widened to the type of x. Not part of the key: the
  // tuner's own operands allow it.
  bool in_memory = false, in_registers = false;
  bool two_parts = false;  // exact, x in bf16: widened weights have two parts
};
Int4Shape int4_shape(const Stream& s, View y, View x, const int4::Weight& w, View residual, const Int4Linear::Args& a);
/// The properties of a shape that determine its ways: those of its key, under "int4_linear" (core/ways.h).
std::array<std::int64_t, 5> fields_of(const Int4Shape& s);
/// For people: "1x4096x4096 group 32".
std::string words_of(const Int4Shape& s);

/// Not among them: many rows of bf16 on Hopper (int4_widened.h), whatever is chosen here.
/// The ways that support this shape on the stream's GPU. Valid until the calling thread's next call.
std::span<const Int4Way> int4_ways(const Stream& s, const Int4Shape& shape);
/// The way selected by the shape.
int int4_built_in(const Stream& s, const Int4Shape& shape);
/// The way that int4_linear() uses: the one that the stream's table says, else the built-in one.
int int4_way(const Stream& s, const Int4Shape& shape);
/// Like int4_linear(), with the given way.
void int4_linear_by(int way, Stream& s, Tensor y, View x, const int4::Weight& w, View bias, View residual,
                    const int4::Scratch& scratch, const Int4Linear::Args& a);
/// The names of all ways, by id.
std::span<const std::string_view> int4_way_names();

}  // namespace hpcdl::cuda
