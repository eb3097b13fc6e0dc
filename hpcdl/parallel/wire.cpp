#include "hpcdl/parallel/wire.h"

namespace hpcdl::parallel {

double wire_bytes(TensorParallel::Scheme scheme, const io::ModelConfig& model, std::int64_t tokens, int element_bytes,
                  int ranks) {
  const auto n = static_cast<double>(tokens), e = static_cast<double>(element_bytes), p = static_cast<double>(ranks);
  const auto width = static_cast<double>(model.width), ffn = static_cast<double>(model.ffn),
             layers = static_cast<double>(model.layers);
  const auto heads = static_cast<double>(model.heads * model.head_dim);
  const bool naive = scheme == TensorParallel::naive;
  double bytes = n * e * (4 * width + layers * (naive ? 6 * width + 2 * heads + 2 * ffn : 8 * width)) + 24 * n + 8 * p;
  if (scheme == TensorParallel::sequence)
    bytes += 8 * (2 * layers + 1) * width * (model.family == io::Family::gpt2 ? 2 : 1);
  return bytes * (p - 1) / p;
}

}  // namespace hpcdl::parallel
