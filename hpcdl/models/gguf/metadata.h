#pragma once

#include <vector>

#include "hpcdl/io/gguf/writer.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::models {

/// A list of divisors of rotary angles, which a file holds as a tensor.
struct RopeDivisors {
  const char* tensor;
  std::vector<float> values;
};
std::vector<RopeDivisors> rope_divisors(const io::ModelConfig& config);

/// The keys of an architecture: what config_of_gguf() reads. Throws Error for a config that llama.cpp would compute
/// differently. Precondition: resolved.
void add_config(io::GgufValues& values, const io::ModelConfig& config, io::GgufType type);

}  // namespace hpcdl::models
