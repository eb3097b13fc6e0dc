#pragma once
// All codecs, and what follows from their rows. To add one: write a file here whose last lines are its row (nn/codec.h),
// as int4.cpp has it, and add its name to the list.

#include <span>
#include <string>
#include <string_view>

#include "hpcdl/io/json.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/nn/codec.h"

namespace hpcdl::quant {

#define HPCDL_CODECS(ONE) ONE(int4) ONE(nf4) ONE(fp4) ONE(int8) ONE(rot3) ONE(rot_ternary) ONE(fp8) ONE(mxfp4)

#define HPCDL_ROW(name) extern const nn::Codec name##_codec;
HPCDL_CODECS(HPCDL_ROW)
#undef HPCDL_ROW

std::span<const nn::Codec* const> codecs();
/// Null if there is none of this name.
const nn::Codec* find_codec(std::string_view name);

/// Why a matrix with `in` inputs cannot be quantised with these options; empty if it can. Throws Error for a group or for
/// scales that the codec does not have.
std::string misfit(const nn::Codec& codec, std::int64_t in, const nn::CodecOptions& options);
/// The number of which the inputs of a matrix must be a multiple.
std::int64_t row_unit(const nn::Codec& codec, const nn::CodecOptions& options);
/// Throws Error that names `name` if there is a misfit.
void require_fit(const nn::Codec& codec, std::string_view name, std::int64_t in, const nn::CodecOptions& options);

/// The number of elements of the model that a stored tensor represents.
std::int64_t parameters_in(std::string_view name, const Spec& spec);

/// "quantization_config" of config.json.
io::QuantConfig parse_config(const io::Json& json, const std::string& where);
io::Json make_config(const io::QuantConfig& config);

}  // namespace hpcdl::quant
