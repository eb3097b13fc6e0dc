#pragma once
// A model whose weights do not all fit into the memory of a GPU: some layers stay in page-locked host memory, and are
// copied through a ring of blocks on the device in every pass. The copy of a layer runs while earlier ones compute: it
// waits only for the layer that had its block before.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/pinned.h"
#include "hpcdl/models/layer_source.h"
#include "hpcdl/models/stream_plan.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

class HostLayers : public LayerSource {
 public:
  /// The layer that a parameter belongs to; -1: none.
  using LayerOf = std::function<int(std::string_view name)>;

  /// Plans which layers stay in `vram` bytes on the device, and copies the others into memory of this. The entries of the
  /// table are in host memory. `others`: bytes of what stays besides them. Throws Error if `vram` is too small.
  HostLayers(const StateTable& table, std::int64_t layers, const LayerOf& layer_of, std::int64_t others,
             std::int64_t vram, Device device);

  /// Where programs read an entry: in a block of the ring; absent if it stays.
  Tensor place(const StateEntry& e) const;
  void fetch(Graph& g, int layer) const override;
  void release(Graph&, int) const override {}  // programs know what reads a block
  const StreamPlan& plan() const { return plan_; }
  /// Bytes that a pass copies to the device.
  std::int64_t bytes_of_pass() const;
  /// In words.
  std::string describe() const;

 private:
  struct Layer {
    std::int64_t bytes = 0;
    Pinned host;  // empty: it stays
    std::byte* block = nullptr;
  };

  Device device_;
  StreamPlan plan_;
  std::int64_t all_ = 0;  // bytes of weights
  std::vector<Layer> layers_;
  Buffer ring_;
  struct Place {
    std::size_t layer;
    std::int64_t offset;
  };
  std::map<std::string, Place, std::less<>> places_;  // of what is in layers, by the names of entries
};

}  // namespace hpcdl::models
