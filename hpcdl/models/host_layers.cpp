#include "hpcdl/models/host_layers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "hpcdl/core/units.h"
#include "hpcdl/graph/move.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kAlign = 256;  // more than any kernel asks for

std::int64_t padded(std::int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Operand bytes_of(Graph& g, const std::string& name, const Tensor& memory) { return g.constant(name, memory).operand(); }

}  // namespace

HostLayers::HostLayers(const StateTable& table, std::int64_t layers, const LayerOf& layer_of, std::int64_t others,
                       std::int64_t vram, Device device)
    : device_(device), layers_(static_cast<std::size_t>(layers)) {
  std::int64_t stays = others;
  table.for_each([&](const StateEntry& e) {
    const int layer = layer_of(e.param->name);
    const auto bytes = padded(e.memory.bytes());
    all_ += e.memory.bytes();
    if (layer < 0) return static_cast<void>(stays += bytes);
    auto& l = layers_[static_cast<std::size_t>(layer)];
    places_.emplace(e.name, Place{static_cast<std::size_t>(layer), l.bytes});
    l.bytes += bytes;
  });
  std::vector<std::int64_t> sizes;
  for (const auto& l : layers_) sizes.push_back(l.bytes);
  plan_ = plan_streaming(stays, sizes, vram);
  if (plan_.blocks == 0) return;
  std::int64_t block = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (plan_.streams[i]) block = std::max(block, sizes[i]);
  ring_ = Buffer(plan_.blocks * block, device);
  for (std::int64_t i = 0, streamed = 0; i < layers; ++i) {
    auto& l = layers_[static_cast<std::size_t>(i)];
    if (!plan_.streams[static_cast<std::size_t>(i)]) continue;
    l.host = Pinned(l.bytes, device);
    l.block = ring_.data() + streamed++ % plan_.blocks * block;
  }
  table.for_each([&](const StateEntry& e) {
    const auto at = places_.find(e.name);
    if (at == places_.end() || !plan_.streams[at->second.layer]) return;
    std::memcpy(layers_[at->second.layer].host.data() + at->second.offset, e.memory.data(),
                static_cast<std::size_t>(e.memory.bytes()));
  });
}

Tensor HostLayers::place(const StateEntry& e) const {
  const auto at = places_.find(e.name);
  if (at == places_.end() || !plan_.streams[at->second.layer]) return {};
  return Tensor(layers_[at->second.layer].block + at->second.offset, e.memory.spec(), device_);
}

void HostLayers::fetch(Graph& g, int layer) const {
  const auto& l = layers_[static_cast<std::size_t>(layer)];
  if (!l.host.data()) return;
  const Graph::Scope scope(g, "layers." + std::to_string(layer));
  const auto name = "weights.layer." + std::to_string(layer);
  const Spec spec{{l.bytes}, DType::u8};
  Moves moves;
  moves.add(bytes_of(g, name, Tensor(l.block, spec, device_)),
            bytes_of(g, name + ".host", Tensor(l.host.data(), spec)));
  moves.record(g, Lane::gather, Phase::forward);
}

std::int64_t HostLayers::bytes_of_pass() const {
  std::int64_t sum = 0;
  for (const auto& l : layers_) sum += l.host.bytes();
  return sum;
}

std::string HostLayers::describe() const {
  const auto in_words = [](std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  if (plan_.blocks == 0) return fmt::format("all {} on the device", in_words(all_));
  return fmt::format("{} of {} layers stay on the host and pass through {} blocks, {} of {} on the device at a time",
                     std::ranges::count(plan_.streams, true), plan_.streams.size(), plan_.blocks, in_words(plan_.bytes),
                     in_words(all_));
}

}  // namespace hpcdl::models
