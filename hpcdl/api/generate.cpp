#include "hpcdl/generate.h"

#include "hpcdl/infer/generator.h"

namespace hpcdl {

Generator::Generator(const Model& model, Pool& pool, std::int64_t capacity)
    : generator_(std::make_unique<infer::Generator>(model.internal(), pool,
                                                    capacity > 0 ? capacity : model.shape().context)) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

std::vector<std::int32_t> Generator::generate(std::span<const std::int32_t> prompt, int tokens,
                                              const Sampling& sampling,
                                              const std::function<bool(std::int32_t id)>& on_token) {
  std::vector<std::int32_t> ids;
  const infer::SamplingOptions how{
      .temperature = sampling.temperature, .top_k = sampling.top_k, .top_p = sampling.top_p, .seed = sampling.seed};
  how.check();
  generator_->generate(prompt, tokens, how, [&](std::int32_t id) {
    ids.push_back(id);
    return !on_token || on_token(id);
  });
  return ids;
}

}  // namespace hpcdl
