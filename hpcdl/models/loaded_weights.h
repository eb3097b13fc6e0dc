#pragma once
// The weights of a model in memory of their own, where they do not all fit into it at a time: what stays, and either a
// ring through which layers pass, or a cache of the experts that tokens have chosen.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/graph.h"
#include "hpcdl/io/block_cache.h"
#include "hpcdl/io/layer_ring.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/models/layer_source.h"
#include "hpcdl/models/stream_plan.h"
#include "hpcdl/state/table.h"

namespace hpcdl::models {

class LoadedWeights : public LayerSource {
 public:
  /// What a parameter belongs to; -1: to no layer, to no expert of its layer.
  struct Part {
    int layer = -1, expert = -1;
  };
  using PartOf = std::function<Part(std::string_view name)>;

  /// Moves the entries of a table that lie in the mapped `files` into at most `ram` bytes of memory, and reads those that
  /// stay there. Throws Error if `ram` is too small or a file cannot be read.
  LoadedWeights(const std::vector<const io::MappedFile*>& files, StateTable& table, std::int64_t layers,
                const PartOf& part_of, std::int64_t ram);

  void fetch(Graph& g, int layer) const override;
  void release(Graph& g, int layer) const override;
  void fetch_experts(Graph& g, int layer, const Var& chosen) const override;
  /// What is in memory and how the rest is read, in words.
  std::string describe() const;
  /// Whether a part of the weights is read while programs run.
  bool streams() const { return ring_ || cache_; }

 private:
  struct Blocks;
  std::vector<std::int64_t> read_resident(const Blocks& blocks);
  void stream_layers(const Blocks& blocks);
  void hold(Graph& g, int layer, bool begin) const;
  bool direct() const;  // whether all files are read past the page cache
  void start_queue();

  StreamPlan plan_;
  ExpertPlan experts_;
  std::int64_t all_ = 0;      // bytes of weights
  std::vector<int> in_ring_;  // of each layer; -1: it stays
  std::vector<io::DirectFile> files_;
  Buffer resident_, blocks_;
  std::optional<io::FileQueue> queue_;  // of the ring or the cache
  std::optional<io::LayerRing> ring_;
  std::optional<io::BlockCache> cache_;
};

}  // namespace hpcdl::models
