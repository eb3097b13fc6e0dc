#pragma once
// A run over dp x tp x flat ranks whose every byte is a function of (step, tensor, position in the whole tensor), split
// in every way that layers are, with each rank's part along tp also divided into flat ranges of elements.

#include <cstring>
#include <numeric>

#include "hpcdl/buffer.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {

struct Mesh {
  int dp = 1, tp = 1, flat = 1;
  int ranks() const { return dp * tp * flat; }
};
inline const std::vector<Mesh> kMeshes = {{1, 1}, {1, 2}, {2, 1}, {1, 4},    {2, 2},    {1, 8},
                                          {2, 4}, {8, 1}, {1, 3}, {1, 1, 5}, {1, 2, 2}, {2, 3, 2}};

class ShardedRun {
 public:
  /// The split is a function of (seed, mesh); shapes of the whole tensors only of the seed.
  ShardedRun(std::uint64_t seed, Mesh mesh, int rank, std::int64_t step, int tensors = 12) : seed_(seed), step_(step) {
    for (int t = 0; t < tensors; ++t) {
      for (const bool moment : {false, true}) add(t, moment, mesh, rank % mesh.tp, rank / mesh.tp % mesh.flat);
    }
    go_to(step);
  }

  void go_to(std::int64_t step) {
    step_ = step;
    for (auto& held : held_)
      for_each(held, [&](std::byte* at, int width, std::uint64_t value) {
        std::memcpy(at, &value, static_cast<std::size_t>(width));
      });
  }
  /// Whether every element belongs to `step`.
  bool is_at(std::int64_t step) {
    step_ = step;
    bool same = true;
    for (auto& held : held_)
      for_each(held, [&](std::byte* at, int width, std::uint64_t value) {
        same = same && std::memcmp(at, &value, static_cast<std::size_t>(width)) == 0;
      });
    return same;
  }

  TrainState state() const {
    return {
        .step = step_, .tokens = step_ * 512, .seed = seed_, .epoch = 1, .index = step_, .scalars = {{"loss", 0.1}}};
  }
  CheckpointContent content() const {
    CheckpointContent out{.model = {}, .optimizer = {}, .config_toml = "a = 1\n", .extra = [](const fs::path& f) {
                            write_file_atomic(f / "config.json", "{}\n");
                          }};
    out.max_file_bytes = 2000;
    for (const auto& h : held_) (h.moment ? out.optimizer : out.model).push_back({h.name, h.view, h.part});
    return out;
  }
  std::vector<NamedTensor> model() const { return list(false); }
  std::vector<NamedTensor> optimizer() const { return list(true); }

 private:
  struct Held {
    std::string name;
    bool moment;
    std::uint64_t stream;
    Spec whole;
    Part part;
    OwnedTensor memory;
    Tensor view;
  };

  std::vector<NamedTensor> list(bool moment) const {
    std::vector<NamedTensor> out;
    for (const auto& h : held_)
      if (h.moment == moment) out.push_back({h.name, h.view, h.part});
    return out;
  }

  void add(int t, bool moment, Mesh mesh, int tp_rank, int flat_rank) {
    const Rng rng{seed_, static_cast<std::uint64_t>(t)};
    static constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f32, DType::i64, DType::u8};
    Spec whole{{}, moment ? DType::f32 : kTypes[rng.below(0, 5)]};
    const auto dims = static_cast<int>(rng.below(1, 4));
    for (int d = 0; d < dims; ++d)
      whole.shape.push_back(1 + static_cast<std::int64_t>(rng.below(2 + static_cast<std::uint64_t>(d), 23)));
    const Rng split{seed_ + 1000 * static_cast<std::uint64_t>(mesh.tp), static_cast<std::uint64_t>(t)};
    const int dim = dims == 0 ? -1 : static_cast<int>(split.below(0, static_cast<std::uint64_t>(dims) + 1)) - 1;
    Held held{fmt::format("layer.{}.{}", t, moment ? "m" : "weight"),
              moment,
              static_cast<std::uint64_t>(2 * t + moment),
              whole,
              {},
              {},
              {}};
    if (dim >= 0) {  // one to three parts (q, k, v), each divided at different places, so a rank may hold nothing
      std::vector<Interval> intervals;
      const std::int64_t parts =
          std::min<std::int64_t>(1 + static_cast<std::int64_t>(split.below(1, 3)), whole.shape[dim]);
      for (std::int64_t p = 0; p < parts; ++p) {
        const std::int64_t begin = whole.shape[dim] * p / parts, n = whole.shape[dim] * (p + 1) / parts - begin;
        const std::int64_t from = begin + n * tp_rank / mesh.tp, to = begin + n * (tp_rank + 1) / mesh.tp;
        intervals.push_back({from, to});
      }
      held.part = Part::along(whole.shape, dim, intervals);
    }
    if (mesh.flat > 1 && split.below(8, 4) != 0) {
      const auto n = (held.part.all() ? whole.shape : held.part.local).size();
      held.part = Part::flat(whole.shape, {n * flat_rank / mesh.flat, n * (flat_rank + 1) / mesh.flat}, held.part);
    }
    const Spec local{held.part.all() ? whole.shape : held.part.local, whole.dtype};
    const bool transposed = local.shape.rank() == 2 && split.below(7, 2) == 1;
    held.memory = OwnedTensor(local);
    held.view = held.memory.tensor;
    if (transposed) held.view = Tensor(held.memory.buffer.data(), local, Shape{1, local.shape[0]}, Device{});
    held_.push_back(std::move(held));
  }

  template <class F> void for_each(Held& h, F f) const {
    // For each element of the holder's tensor, in row-major order: its position in the whole tensor.
    std::vector<std::int64_t> place(static_cast<std::size_t>(h.view.size()));
    std::iota(place.begin(), place.end(), std::int64_t{0});
    const Shape whole = contiguous_strides(h.whole.shape);
    for (const Box& box : h.part.boxes)
      for (std::int64_t n = 0; n < box.size(); ++n) {
        std::int64_t rest = n, at = box.at, global = 0;
        for (int d = h.whole.shape.rank() - 1; d >= 0; --d) {
          const std::int64_t i = rest % box.extent[d];
          rest /= box.extent[d];
          at += i * h.part.strides[d], global += (box.begin[d] + i) * whole[d];
        }
        place[static_cast<std::size_t>(at)] = global;
      }
    const int width = dtype_bytes(h.whole.dtype);
    for (std::int64_t n = 0; n < h.view.size(); ++n) {
      std::int64_t rest = n, at = 0;
      for (int d = h.view.rank() - 1; d >= 0; --d) {
        at += rest % h.view[d] * h.view.strides()[d];
        rest /= h.view[d];
      }
      const Rng value{static_cast<std::uint64_t>(step_) * 7919 + 13, h.stream};
      const auto b = value.block(static_cast<std::uint64_t>(place[static_cast<std::size_t>(n)]));
      f(h.view.ptr<std::byte>() + at * width, width, (std::uint64_t{b[0]} << 32) | b[1]);
    }
  }

  std::uint64_t seed_;
  std::int64_t step_;
  std::vector<Held> held_;
};

}  // namespace hpcdl::io
