#pragma once
// Where the scales of 8-bit moments (ops/adamw8) lie: one for each block of AdamW8::kBlock elements. Blocks do not depend
// on how ranks divide a tensor, so that checkpoints are for any ranks between whose parts no block lies.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"
#include "hpcdl/nn/param.h"

namespace hpcdl {

/// A tensor with fewer elements over all ranks keeps moments in f32: together such tensors are small, and biases and norms
/// have gradients of other sizes than their neighbours.
inline constexpr std::int64_t kLeastCoded = 4096;

/// The shape of the scales of a whole tensor: if its rows are whole blocks, (..., blocks of a row), else one dim.
Shape shape_of_blocks(const Shape& whole);

/// The scales of the holder of that part of the elements, which lie in its memory without gaps; everything if the part is.
/// Throws Error that names the tensor if the part begins or ends inside of a block.
Part part_of_blocks(const Part& part, std::string_view name);

/// A moment of a parameter, or the scales of one.
struct NewMoment {
  nn::Param* of;
  std::string ending;  // of its name: ".m", ".m.scale"
  Spec spec;
  Part part;
};

/// What a rank updates of a parameter.
struct UpdatedPart {
  Shape shape;  // in memory
  Part part;
};

/// Adds the moments of these names, f32; or, coded, the first as I8 and the second as U8, each with its scales after it, if
/// the parameter is large enough.
void add_new_moments(std::vector<NewMoment>& to, nn::Param& param, const UpdatedPart& updated,
                     std::span<const std::string_view> names, bool coded);

}  // namespace hpcdl
