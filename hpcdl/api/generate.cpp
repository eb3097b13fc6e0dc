#include "hpcdl/generate.h"

#include <algorithm>

#include "hpcdl/infer/engine.h"

namespace hpcdl {

Generator::Generator(const Model& model, Pool& pool, std::int64_t capacity)
    : engine_(std::make_unique<infer::Engine>(model.internal(), pool,
                                              infer::EngineOptions{.context = std::max<std::int64_t>(0, capacity)})) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

std::vector<std::int32_t> Generator::generate(std::span<const std::int32_t> prompt, int tokens,
                                              const Sampling& sampling,
                                              const std::function<bool(std::int32_t id)>& on_token) {
  std::vector<std::int32_t> ids;
  const infer::SamplingOptions how{.temperature = sampling.temperature,
                                   .top_k = sampling.top_k,
                                   .top_p = sampling.top_p,
                                   .ignore_eos = true,
                                   .seed = sampling.seed};
  how.check();
  engine_->generate(prompt, tokens, how, [&](std::int32_t id) {
    ids.push_back(id);
    return !on_token || on_token(id);
  });
  return ids;
}

}  // namespace hpcdl
