#include "hpcdl/models/loaded_weights.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/emit.h"

namespace hpcdl::models {
namespace {

constexpr std::string_view kRing = "weights.ring", kExperts = "weights.experts";

struct LayerArgs : Bound {
  std::int64_t layer = 0;  // number in the ring

  LayerArgs(const io::LayerRing& ring, int number) : Bound(kRing, &ring), layer(number) {}
  io::LayerRing& ring() const { return *static_cast<io::LayerRing*>(const_cast<void*>(at)); }
};

struct LayerRecord {
  using RecordArgs = LayerArgs;
  static void check_record(const RawRecord& r) {
    r.require_count(1);
    require(r.contiguous(0).dtype == DType::u8, "model", "a block of layers holds bytes");
    const auto layer = r.args<LayerArgs>().layer;
    require(layer >= 0 && layer < 1 << 20, "model", "there is no layer {} in the ring", layer);
  }
  static const LayerArgs& args_of(Stream& s, const void* args) {
    s.require_cpu();
    const auto& a = *static_cast<const LayerArgs*>(args);
    require(a.layer < a.ring().layers(), "model", "the ring has {} layers, and no number {}", a.ring().layers(),
            a.layer);
    return a;
  }
};

/// Writes a layer into its block.
struct FetchLayer : LayerRecord {
  static constexpr std::string_view name = "layer.fetch";
  static void run(Stream& s, const Grad*, const void* args) {
    const auto& a = args_of(s, args);
    a.ring().fetch(static_cast<int>(a.layer));
  }
};
/// The layer has been read for the last time in a pass.
struct ReleaseLayer : LayerRecord {
  static constexpr std::string_view name = "layer.release";
  static void run(Stream& s, const Grad*, const void* args) {
    const auto& a = args_of(s, args);
    a.ring().release(static_cast<int>(a.layer));
  }
};

struct ExpertsArgs : Bound {
  std::int64_t layer = 0;

  ExpertsArgs(const io::BlockCache& cache, int number) : Bound(kExperts, &cache), layer(number) {}
  io::BlockCache& cache() const { return *static_cast<io::BlockCache*>(const_cast<void*>(at)); }
};

/// Reads those of the experts that tokens have chosen which are not in memory.
struct FetchExperts {
  using RecordArgs = ExpertsArgs;
  static constexpr std::string_view name = "experts.fetch";
  static void check_record(const RawRecord& r) {
    r.require_count(2);
    require(r.contiguous(0).dtype == DType::u8, "model", "a block of experts holds bytes");
    require(r.contiguous(1).dtype == DType::i32, "model", "numbers of experts are of type i32");
    const auto layer = r.args<ExpertsArgs>().layer;
    require(layer >= 0 && layer < 1 << 20, "model", "there is no layer {} of experts", layer);
  }
  static void run(Stream& s, const Grad* operands, const void* args) {
    s.require_cpu();
    const auto& a = *static_cast<const ExpertsArgs*>(args);
    require(a.layer < a.cache().groups(), "model", "{} layers have experts, and there is no number {}",
            a.cache().groups(), a.layer);
    const auto& chosen = operands[1];
    a.cache().fetch(static_cast<int>(a.layer),
                    {chosen.ptr<std::int32_t>(), static_cast<std::size_t>(chosen.shape().size())});
  }
};

/// For direct reads. Larger blocks begin at a huge page, smaller ones only at a cache line.
Buffer page_aligned(std::int64_t bytes) {
  constexpr std::int64_t kHuge = std::int64_t{2} << 20;
  return bytes == 0 ? Buffer() : Buffer(std::max(bytes, kHuge));
}

/// Where the mapped tensors of a table lie in files.
struct Places {
  struct Place {
    std::size_t file;
    std::int64_t offset;
  };
  const std::vector<const io::MappedFile*>& files;

  /// Nothing for a tensor in other memory.
  std::optional<Place> of(const Tensor& t) const {
    const auto* at = static_cast<const std::byte*>(t.data());
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto& file = *files[i];
      if (at >= file.data() && at < file.data() + file.size()) return Place{i, at - file.data()};
    }
    return {};
  }
};

}  // namespace

/// The mapped entries of a table, in blocks that are read together.
struct LoadedWeights::Blocks {
  std::vector<io::FileBlock> layers;                // the last one has what belongs to no layer
  std::vector<std::vector<io::FileBlock>> experts;  // of each layer; empty if they are parts of it
  std::int64_t converted = 0;                       // bytes of entries in other memory

  Blocks(const Places& places, const StateTable& table, std::int64_t count, const PartOf& part_of, bool apart)
      : layers(static_cast<std::size_t>(count) + 1), experts(apart ? static_cast<std::size_t>(count) : 0) {
    table.for_each([&](const StateEntry& e) {
      if (const auto place = places.of(e.memory))
        of(part_of(e.param->name)).add(place->file, place->offset, e.memory.bytes());
      else converted += e.memory.bytes();
    });
    for (auto& b : layers) b.close();
    for (auto& layer : experts)
      for (auto& b : layer) b.close();
  }

  std::size_t number_of(Part p) const { return p.layer < 0 ? layers.size() - 1 : static_cast<std::size_t>(p.layer); }
  io::FileBlock& of(Part p) {
    if (p.expert < 0 || p.layer < 0 || experts.empty()) return layers[number_of(p)];
    auto& list = experts[number_of(p)];
    const auto expert = static_cast<std::size_t>(p.expert);
    if (list.size() <= expert) list.resize(expert + 1);
    return list[expert];
  }
  std::vector<std::int64_t> bytes() const {
    std::vector<std::int64_t> list;
    for (const auto& b : layers) list.push_back(b.bytes());
    return list;
  }
  /// How many experts all layers have together, and the layer with the most.
  std::pair<std::int64_t, std::int64_t> count_experts() const {
    std::int64_t all = 0, most = 0;
    for (const auto& list : experts) all += std::ssize(list), most = std::max(most, std::ssize(list));
    return {all, most};
  }
};

LoadedWeights::LoadedWeights(const std::vector<const io::MappedFile*>& files, StateTable& table, std::int64_t layers,
                             const PartOf& part_of, std::int64_t ram) {
  const Places places{files};
  files_.reserve(files.size());
  for (const auto* file : files) files_.emplace_back(file->path());

  Blocks blocks(places, table, layers, part_of, false);
  auto bytes = blocks.bytes();
  all_ = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  if (blocks.converted + all_ > ram) {
    Blocks apart(places, table, layers, part_of, true);
    const auto stay = apart.bytes();
    const auto [experts, most] = apart.count_experts();
    experts_ = plan_experts(std::accumulate(stay.begin(), stay.end(), blocks.converted),
                            io::BlockCache::block_bytes(apart.experts), most, experts, ram);
    if (experts_.experts > 0) blocks = std::move(apart), bytes = stay;
  }
  const auto least = experts_.bytes > 0 ? experts_.bytes : std::numeric_limits<std::int64_t>::max();
  plan_ = plan_streaming(blocks.converted + bytes.back(), std::span(bytes).first(bytes.size() - 1), ram, least);

  const auto base = read_resident(blocks);
  if (plan_.blocks > 0) stream_layers(blocks);
  if (experts_.experts > 0) {
    start_queue();
    cache_.emplace(*queue_, files_, blocks.experts, experts_.experts);
  }
  table.move_values([&](const StateEntry& e) {
    const auto place = places.of(e.memory);
    if (!place) return e.memory;
    const auto part = part_of(e.param->name);
    const auto i = blocks.number_of(part);
    const bool in_ring = i < in_ring_.size() && in_ring_[i] >= 0;
    auto* block = cache_ && part.expert >= 0 ? cache_->memory_of(part.layer, part.expert)
                  : in_ring                  ? ring_->memory_of(in_ring_[i])
                                             : resident_.data() + base[i];
    return Tensor(block + blocks.of(part).position(place->file, place->offset), e.memory.spec());
  });
}

/// Reads what stays in memory; returns where each of the blocks is there.
std::vector<std::int64_t> LoadedWeights::read_resident(const Blocks& blocks) {
  std::vector<std::int64_t> base(blocks.layers.size());
  std::int64_t bytes = 0;
  const auto stays = [&](std::size_t i) { return i >= plan_.streams.size() || !plan_.streams[i]; };
  for (std::size_t i = 0; i < base.size(); ++i)
    if (stays(i)) base[i] = bytes, bytes += blocks.layers[i].bytes();
  resident_ = page_aligned(bytes);
  std::vector<io::FilePiece> pieces;
  for (std::size_t i = 0; i < base.size(); ++i)
    if (stays(i))
      std::ranges::copy(blocks.layers[i].pieces(files_, resident_.data() + base[i]), std::back_inserter(pieces));
  // The first write to memory clears it, on the thread that asks for the read: 0.8 GB come in 0.35 s by eight threads,
  // and in 0.6 s by io_uring's one.
  io::FileQueue first(io::FileQueue::Way::threads);
  first.wait(first.start(pieces));
  return base;
}

void LoadedWeights::stream_layers(const Blocks& blocks) {
  std::vector<io::FileBlock> streamed;
  for (std::size_t i = 0; i < plan_.streams.size(); ++i) {
    in_ring_.push_back(plan_.streams[i] ? static_cast<int>(streamed.size()) : -1);
    if (plan_.streams[i]) streamed.push_back(blocks.layers[i]);
  }
  start_queue();
  blocks_ = page_aligned(plan_.blocks * io::LayerRing::block_bytes(streamed));
  ring_.emplace(*queue_, files_, std::move(streamed), plan_.blocks, blocks_.data());
}

void LoadedWeights::start_queue() {
  queue_.emplace(direct() ? io::FileQueue::Way::uring : io::FileQueue::Way::threads);
}

void LoadedWeights::hold(Graph& g, int layer, bool begin) const {
  const int number = ring_ ? in_ring_[static_cast<std::size_t>(layer)] : -1;
  if (number < 0) return;
  const Graph::Scope scope(g, "layers." + std::to_string(layer));
  const Var block = g.constant("weights.block." + std::to_string(ring_->block_of(number)),
                               Tensor(ring_->memory_of(number), {{ring_->block_bytes()}, DType::u8}));
  const LayerArgs args(*ring_, number);
  const auto operand = begin ? write_operand(block) : read_operand(block);
  if (begin) return g.emit<FetchLayer>({&operand, 1}, &args, sizeof args, {}, Phase::forward, &args);
  const Cost none{.reads = -static_cast<double>(block.spec().bytes())};  // it touches nothing
  g.emit<ReleaseLayer>({&operand, 1}, &args, sizeof args, none, Phase::forward, &args);
}

void LoadedWeights::fetch(Graph& g, int layer) const { hold(g, layer, true); }
void LoadedWeights::release(Graph& g, int layer) const { hold(g, layer, false); }

void LoadedWeights::fetch_experts(Graph& g, int layer, const Var& chosen) const {
  if (!cache_ || cache_->blocks_of(layer) == 0) return;
  const Var experts = g.constant("weights.experts." + std::to_string(layer),
                                 Tensor(cache_->memory_of(layer, 0), {{cache_->group_bytes(layer)}, DType::u8}));
  const auto choices = chosen.shape().size(), blocks = std::int64_t{cache_->blocks_of(layer)};
  const ExpertsArgs args(*cache_, layer);
  const Operand operands[] = {write_operand(experts), read_operand(chosen)};
  const auto unchosen = std::max<std::int64_t>(blocks - choices, 0);
  const Cost expected{.writes = -static_cast<double>(cache_->group_bytes(layer) / blocks * unchosen)};
  g.emit<FetchExperts>(operands, &args, sizeof args, expected, Phase::forward, &args);
}

bool LoadedWeights::direct() const { return std::ranges::all_of(files_, &io::DirectFile::direct); }

std::string LoadedWeights::describe() const {
  const auto in_words = [](std::int64_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  const std::string where = direct() ? "past the page cache" : "through the page cache, as there is no O_DIRECT";
  if (cache_) {
    std::int64_t experts = 0;
    for (int i = 0; i < cache_->groups(); ++i) experts += cache_->blocks_of(i);
    return fmt::format(
        "direct: experts are read when tokens choose them, {} of {} experts and {} of {} in memory at a "
        "time, read {} by {}",
        experts_.experts, experts, in_words(experts_.bytes), in_words(all_), where, way_name(queue_->way()));
  }
  if (!ring_) return fmt::format("resident: all {} in memory, read {}", in_words(all_), where);
  return fmt::format("direct: {} of {} layers pass through {} blocks, {} of {} in memory at a time, read {} by {}",
                     ring_->layers(), plan_.streams.size(), plan_.blocks, in_words(plan_.bytes), in_words(all_), where,
                     way_name(queue_->way()));
}

}  // namespace hpcdl::models
