#pragma once

#include <map>
#include <span>
#include <string>

#include "hpcdl/pool.h"
#include "hpcdl/quant/quantize_model.h"

namespace hpcdl::models {

/// The formats of a model's matrices, by name, if they may take `bits` a weight altogether: each is that of `options`, or rot3 or
/// int8 where its inputs fit them. They are chosen by the divergence of the next token that each causes by itself on the first
/// tokens of a text, without compensation: starting from the smallest formats, whatever lowers the divergence most for its
/// bits comes first. Throws UsageError if no choice is as small.
std::map<std::string, const nn::Codec*> choose_formats(Pool& pool, const io::fs::path& from,
                                                       const quant::QuantizeModelOptions& options, double bits,
                                                       std::span<const std::int32_t> tokens);

}  // namespace hpcdl::models
