#include "hpcdl/optim/grad_scaler.h"

#include <bit>
#include <cmath>
#include <limits>

#include "hpcdl/core/error.h"
#include "hpcdl/core/pinned.h"

namespace hpcdl {
namespace {

LossScale::Args scaling(const GradScaler::Options& o, float divisor) {
  constexpr float kMost = 0x1p127f, kLeast = std::numeric_limits<float>::min();
  return {.growth = o.growth_factor,
          .backoff = o.backoff_factor,
          .least = std::max(o.min_scale / divisor, kLeast),
          .most = kMost,
          .interval = o.growth_interval};
}

float divisor_of(std::int64_t terms) {
  require(terms >= 1, "grad_scaler", "expected a loss of at least 1 term, got {}", terms);
  return static_cast<float>(std::bit_ceil(static_cast<std::uint64_t>(terms)));
}

}  // namespace

GradScaler::GradScaler(const Options& o, std::nullptr_t)
    : args_(scaling(o, divisor_of(o.terms))), divisor_(divisor_of(o.terms)) {
  scale_.tensor = Tensor(nullptr, LossScale::kScale), counts_.tensor = Tensor(nullptr, LossScale::kCounts);
}

GradScaler::GradScaler(const Options& o, Device device) : GradScaler(o, nullptr) {
  scale_ = OwnedTensor(LossScale::kScale, device), counts_ = OwnedTensor(LossScale::kCounts, device);
  Pool pool(1);
  set_state(Stream(device, pool), {o.init_scale, {}});
}

void GradScaler::backward(Graph& g, const Var& loss) const {
  g.backward(loss, g.constant("loss_scale", scale_.tensor));
}

void GradScaler::queue_state(const Stream& s, State* pinned) const {
  copy_to_pinned(s, &pinned->scale, scale_.tensor);
  copy_to_pinned(s, &pinned->counts, counts_.tensor);
}

GradScaler::State GradScaler::state(State pinned) const {
  pinned.scale *= divisor_;
  return pinned;
}

GradScaler::State GradScaler::state(const Stream& s) const {
  State now;
  copy(s, Tensor(&now.scale, LossScale::kScale), scale_.tensor);
  copy(s, Tensor(&now.counts, LossScale::kCounts), counts_.tensor);
  s.synchronize();
  return state(now);
}

void GradScaler::set_state(const Stream& s, const State& state) {
  require(state.scale > 0 && std::isfinite(state.scale), "grad_scaler", "expected a loss scale above 0, got {}",
          state.scale);
  const float scale = state.scale / divisor_;
  copy(s, scale_.tensor, View(&scale, LossScale::kScale));
  copy(s, counts_.tensor, View(&state.counts, LossScale::kCounts));
  s.synchronize();
}

}  // namespace hpcdl
