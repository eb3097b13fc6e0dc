// Ranks that divide the state of a training learn, to the bit, what ranks that each hold all of it learn.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/checkpoint_files.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/testing/zero_runs.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {
namespace {

using models::LanguageModel;

/// Worlds of any size, also those that divide nothing evenly, with tensors that are smaller than the world.
TEST(zero, every_stage_learns_the_same_bits_in_50_steps) {
  for (const auto family : {io::Family::gpt2, io::Family::llama})  // tied and untied tables
    for (const int n : {2, 3, 5, 7, 8}) {
      const auto want = train_text(family, {.dp = n}, 0, 50);
      for (const int zero : {1, 2, 3}) {
        const auto got = train_text(family, {.dp = n}, zero, 50);
        expect_same(got, want,
                    std::string(io::enum_name(family)) + " on " + std::to_string(n) + ", zero " + std::to_string(zero));
        std::int64_t moments = 0;
        for (const auto& rank : got) moments += rank.moments;
        EXPECT_EQ(moments, want[0].moments) << "every moment is on one rank";
        EXPECT_LT(got[0].moments, want[0].moments);
      }
    }
}

TEST(zero, micro_batches_types_clipping_and_recompute_change_no_bit) {
  const std::pair<const char*, Change> kinds[] = {
      {"micro-batches", [](StepOptions& o) { o.accumulate = true; }},
      {"bf16 with copies", [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; }},
      {"bf16 with copies and micro-batches",
       [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = o.accumulate = true; }},
      {"bf16 without", [](StepOptions& o) { o.forward.compute = DType::bf16; }},
      {"fp16, whose first steps are skipped",
       [](StepOptions& o) {
         o.forward.compute = DType::f16, o.copies = true;
         o.scaler = GradScaler::Options{.init_scale = 0x1p30f};
       }},
      {"clipping", [](StepOptions& o) { o.clip = 0.05f; }},
      {"recompute", [](StepOptions& o) { o.forward.recompute = true, o.forward.dropout = 0.1f; }},
      {"momentum", [](StepOptions& o) { o.optimizer = Sgd::Args{.momentum = 0.9f}; }},
      {"no moments", [](StepOptions& o) { o.optimizer = Sgd::Args{}; }},
      {"waiting", [](StepOptions& o) { o.reduce.overlap = false, o.accumulate = true; }},
      {"gathers that begin when they are needed", [](StepOptions& o) { o.gather_ahead = 0; }},
      {"gathers of all blocks at once", [](StepOptions& o) { o.gather_ahead = 10; }},
  };
  for (const auto& [what, change] : kinds) {
    const auto want = train_text(io::Family::gpt2, {.dp = 3}, 0, 8, change);
    for (const int zero : {1, 2, 3})
      expect_same(train_text(io::Family::gpt2, {.dp = 3}, zero, 8, change), want,
                  std::string(what) + ", zero " + std::to_string(zero));
  }
}

TEST(zero, ranks_that_share_layers_learn_the_same_bits) {
  const Change halves[] = {{}, [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; }};
  for (const auto family : {io::Family::gpt2, io::Family::llama})
    for (const auto& change : halves) {
      const auto want = train_text(family, {.dp = 3, .tp = 2}, 0, 8, change);
      for (const int zero : {1, 2, 3})
        expect_same(train_text(family, {.dp = 3, .tp = 2}, zero, 8, change), want, "zero " + std::to_string(zero));
    }
}

/// Where products read 16-bit copies, each rank keeps only its share of the values themselves, and sends copies alone.
TEST(zero, values_with_copies_are_divided_too) {
  const auto mesh = parallel::Mesh::described({.dp = 4}, 1);
  for (const bool copies : {false, true}) {
    auto model = LanguageModel::create(models::tiny(io::Family::llama), {}, true);
    Pool pool(1);
    Stream s(pool);
    StepOptions o{.batch = 2, .length = 16, .copies = copies, .data = mesh.dp(), .zero = 1};
    o.forward.compute = DType::bf16;
    const StepPrograms p(model, o, s);
    std::int64_t whole = 0, pieces = 0, all = 0;
    for (const auto& e : model.parameters()) all += e.memory.size(), whole += e.counted ? e.memory.size() : 0;
    for (const auto& e : model.state().updated()) pieces += e.counted ? e.memory.size() : 0;
    EXPECT_EQ(whole == all, !copies);
    EXPECT_EQ(pieces > 0, copies);
    EXPECT_LE(whole + pieces, all);
    double declared = 0;  // elements that are gathered, in bytes
    for (const auto& u : p.ranks()->plan().units)
      declared += static_cast<double>(u.elements) * (!copies || u.name.ends_with(".value") ? 4 : 2);
    EXPECT_DOUBLE_EQ(wire_bytes(p.gather()->planned->program), declared * 3 / 4);
  }
}

std::vector<Learned> train_images(models::ImageFamily family, int n, int zero, bool copies) {
  std::vector<Learned> all(static_cast<std::size_t>(n));
  testing::run_ranks(n, [&](const comm::Group& world) {
    models::ImageConfig c{.family = family, .classes = 10};
    c.width = 4;
    auto model = models::ImageModel::create(c, 1, true);
    Pool pool(1);
    StepOptions o{.batch = 2, .copies = copies, .data = world, .zero = zero};
    if (copies) o.forward.compute = DType::bf16;
    TrainStep step(model, pool, o);
    std::vector<double> numbers;
    for (int i = 0; i < 4; ++i) {
      std::vector<OwnedTensor> memory;
      std::vector<View> batch;
      for (const auto& input : step.inputs()) {
        auto& t = memory.emplace_back(input.spec).tensor;
        const Rng rng{static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(world.rank())};
        for (std::int64_t k = 0; k < t.size(); ++k)
          if (t.dtype() == DType::f32)
            t.ptr<float>()[k] = static_cast<float>(rng.normal(static_cast<std::uint64_t>(k)));
          else t.ptr<std::int32_t>()[k] = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(k), 10));
        batch.emplace_back(t);
      }
      step.accumulate(batch, i, 0);
      const auto r = step.update(1e-2, 2);
      numbers.insert(numbers.end(), {r.loss, r.grad_norm});
    }
    step.share_buffers();
    all[static_cast<std::size_t>(world.rank())] = learned(step, model, std::move(numbers));
  });
  return all;
}

TEST(zero, image_models_learn_the_same_bits) {
  for (const auto family : {models::ImageFamily::simple_cnn, models::ImageFamily::resnet18})
    for (const bool copies : {false, true}) {
      const auto want = train_images(family, 3, 0, copies);
      for (const int zero : {1, 2, 3})
        expect_same(train_images(family, 3, zero, copies), want, "zero " + std::to_string(zero));
    }
}

/// The programs of a rank of a described world.
template <class F> void with_programs(int n, int zero, bool accumulate, F&& f) {
  const auto mesh = parallel::Mesh::described({.dp = n}, 0);
  auto model = LanguageModel::create(models::tiny(io::Family::llama), {}, true);
  Pool pool(1);
  Stream s(pool);
  f(StepPrograms(model, {.batch = 2, .length = 16, .accumulate = accumulate, .data = mesh.dp(), .zero = zero}, s));
}

/// The pass of a rank is that of one rank alone, into which exchanges were inserted.
TEST(zero, passes_are_those_of_one_rank_without_the_edits) {
  std::string alone;
  with_programs(4, 0, false, [&](const StepPrograms& p) {
    alone = to_bytes(p.pass(Write::overwrite, StepPrograms::Kind::alone)->planned->program);
  });
  for (const int zero : {1, 2, 3})
    with_programs(4, zero, false, [&](const StepPrograms& p) {
      const auto& first = p.first()->planned->program;
      EXPECT_EQ(p.evaluation()->planned->program.edits.size(), zero == 3 ? 1u : 0u);
      ASSERT_EQ(first.edits.size(), 2u);
      EXPECT_EQ(to_bytes(strip(strip(first))), alone) << zero;
      EXPECT_EQ(to_bytes(program_of(to_bytes(first), "FILE")), to_bytes(first));
    });
}

/// Each byte of a gradient is sent once and each byte of a value once: together as many as the sum over all ranks takes.
TEST(zero, programs_send_what_the_formula_says) {
  for (const int n : {2, 3, 8})
    for (const int zero : {1, 2})
      with_programs(n, zero, false, [&](const StepPrograms& p) {
        const auto block = 4.0 * static_cast<double>(p.ranks()->plan().elements);
        EXPECT_DOUBLE_EQ(wire_bytes(p.first()->planned->program), 2 * block * (n - 1) / n);
        EXPECT_DOUBLE_EQ(wire_bytes(p.gather()->planned->program), block * (n - 1) / n);
      });
}

/// With stage 2, gradients lie in the arena, each unit until it has been summed.
TEST(zero, gradients_do_not_outlive_their_reduction) {
  with_programs(4, 2, false, [](const StepPrograms& p) {
    const auto& program = p.first()->planned->program;
    const auto& lifetime = p.first()->planned->plan.lifetime;
    int units = 0;
    for (const auto& unit : p.ranks()->plan().units)
      for (std::size_t s = 0; s < program.slots.size(); ++s) {
        if (program.slots[s].kind != SlotKind::temp || program.slots[s].name != unit.name + ".grad") continue;
        const auto& last = program.records[static_cast<std::size_t>(lifetime[s].last)];
        EXPECT_EQ(last.op, "reduce_scatter.gradients") << unit.name;
        ++units;
      }
    EXPECT_EQ(units, std::ssize(p.ranks()->plan().units));
  });
}

/// The gathers begin with the pass, and a record waits for no unit but those that it reads: that of unit l + 1 waits for
/// nothing that comes after unit l - 1.
TEST(zero, gathers_wait_for_no_computation) {
  testing::run_ranks(2, [](const comm::Group& world) {
    auto model = LanguageModel::create(models::tiny(io::Family::llama), 1, true);
    Pool pool(1);
    Stream s(pool);
    const StepPrograms p(model, {.batch = 2, .length = 16, .data = world, .zero = 2}, s);
    const Instance exe(*p.first());
    const auto& program = exe.program();
    std::vector<Lane> lanes;
    for (const auto& r : program.records) lanes.push_back(r.lane);
    const std::span operands(exe.operands(0).data() - program.records[0].operands, program.operands.size());
    const auto found = lane_dependencies(program, lanes, operands, false);
    int gathers = 0;
    for (std::size_t i = 0; i < program.records.size(); ++i)
      if (program.records[i].lane == Lane::gather) {
        EXPECT_TRUE(found.waits[i].empty()) << i;
        ++gathers;
      }
    EXPECT_EQ(gathers, std::ssize(p.ranks()->plan().units));
    int waiting = 0;  // records that wait for a gather
    for (std::size_t i = 0; i < program.records.size(); ++i)
      for (const int r : found.waits[i]) waiting += program.records[static_cast<std::size_t>(r)].lane == Lane::gather;
    EXPECT_GE(waiting, gathers) << "each unit is waited for by itself";
  });
}

/// The gathers of a program: their records, and the records that first and last use what they wrote.
struct Gathered {
  std::size_t record, first = 0, last = 0;
  std::string name;  // of the slot
  std::int64_t bytes = 0;
};

std::vector<Gathered> gathers_of(const Program& p) {
  std::vector<Gathered> list;
  std::map<int, std::size_t> by_slot;
  for (std::size_t i = 0; i < p.records.size(); ++i) {
    const auto& r = p.records[i];
    for (auto k = r.operands; k < r.operands + r.operand_count; ++k) {
      const int slot = p.operands[k].slot;
      if (r.op == "all_gather.values" && k + 1 == r.operands + r.operand_count) {
        const auto& s = p.slots[static_cast<std::size_t>(slot)];
        by_slot[slot] = list.size();
        list.push_back({.record = i, .name = s.name, .bytes = s.spec.bytes()});
      } else if (const auto it = by_slot.find(slot); it != by_slot.end()) {
        auto& g = list[it->second];
        if (g.first == 0) g.first = i;
        g.last = i;
      }
    }
  }
  return list;
}

/// A Llama of many small layers, untied, on described ranks with sharded values.
void with_layers(int layers, const Change& change, const std::function<void(const StepPrograms&)>& f) {
  io::ModelConfig config;
  config.family = io::Family::llama;
  config.layers = layers, config.heads = 2, config.width = 128, config.context = 16, config.vocab = 200;
  config.tied = false;
  models::resolve(config);
  const auto mesh = parallel::Mesh::described({.dp = 4}, 1);
  auto model = LanguageModel::create(config, {}, true);
  Pool pool(1);
  Stream s(pool);
  StepOptions o{.batch = 2, .length = 16, .data = mesh.dp(), .zero = 3};
  if (change) change(o);
  f(StepPrograms(model, o, s));
}

/// A block is gathered once in forward and once in backward, also where backward computes its forward again.
TEST(zero, a_block_is_gathered_once_in_forward_and_once_in_backward) {
  for (const bool recompute : {false, true})
    with_layers(
        6, [&](StepOptions& o) { o.forward.recompute = recompute; },
        [](const StepPrograms& p) {
          const auto& program = p.first()->planned->program;
          std::map<std::string, int> times;
          double bytes = 0;
          for (const auto& g : gathers_of(program)) ++times[g.name], bytes += static_cast<double>(g.bytes);
          for (int l = 0; l < 6; ++l) EXPECT_EQ(times["values.model.layers." + std::to_string(l) + ".value"], 2) << l;
          EXPECT_EQ(times["values.model.embed_tokens.value"], 1) << "its gradient reads no table";
          const auto sums = 4.0 * static_cast<double>(p.ranks()->plan().elements);
          EXPECT_DOUBLE_EQ(wire_bytes(program), (bytes + sums) * 3 / 4);
          std::map<std::string, int> evaluated;
          for (const auto& g : gathers_of(p.evaluation()->planned->program)) ++evaluated[g.name];
          EXPECT_EQ(evaluated.size(), p.ranks()->plan().units.size());
          for (const auto& [name, n] : evaluated) EXPECT_EQ(n, 1) << name;
        });
}

/// Where programs read copies, no values of matrices travel.
TEST(zero, copies_travel_instead_of_values) {
  with_layers(
      3, [](StepOptions& o) { o.forward.compute = DType::bf16, o.copies = true; },
      [](const StepPrograms& p) {
        std::int64_t copies = 0, values = 0;
        for (const auto& g : gathers_of(p.first()->planned->program))
          if (g.name.find(".layers.") != std::string::npos)
            (g.name.starts_with("copies.") ? copies : values) += g.bytes;
        EXPECT_GT(copies, 0);
        EXPECT_GT(values, 0) << "of norms";
        for (const auto& e : p.model().state().updated()) EXPECT_TRUE(e.counted) << e.name;
        for (const auto& e : p.model().parameters()) EXPECT_FALSE(e.counted) << e.name;
      });
}

/// However deep the model is, so many blocks are in memory at a time.
TEST(zero, a_pass_holds_few_blocks) {
  for (const int ahead : {0, 1, 2})
    for (const int layers : {6, 12})
      with_layers(
          layers, [&](StepOptions& o) { o.gather_ahead = ahead; },
          [&](const StepPrograms& p) {
            const auto& planned = *p.first()->planned;
            const auto gathers = gathers_of(planned.program);
            std::size_t most = 0;
            for (std::size_t i = 0; i < planned.program.records.size(); ++i) {
              std::set<std::string> held;
              for (const auto& g : gathers)
                if (g.record <= i && i <= g.last) held.insert(g.name);
              most = std::max(most, held.size());
            }
            EXPECT_LE(most, static_cast<std::size_t>(2 + ahead)) << layers << " layers";
          });
}

/// The gather of block l + 1 waits for nothing that comes after block l - 1, and only block l + 1 waits for it.
TEST(zero, a_gather_runs_while_the_block_before_computes) {
  testing::run_ranks(2, [](const comm::Group& world) {
    io::ModelConfig config;
    config.family = io::Family::llama;
    config.layers = 6, config.heads = 2, config.width = 128, config.context = 16, config.vocab = 200;
    config.tied = false;
    models::resolve(config);
    auto model = LanguageModel::create(config, 1, true);
    Pool pool(1);
    Stream s(pool);
    const StepPrograms p(model, {.batch = 2, .length = 16, .data = world, .zero = 3}, s);
    const Instance exe(*p.first());
    const auto& program = exe.program();
    std::vector<Lane> lanes;
    for (const auto& r : program.records) lanes.push_back(r.lane);
    const std::span operands(exe.operands(0).data() - program.records[0].operands, program.operands.size());
    const auto found = lane_dependencies(program, lanes, operands, false);
    auto gathers = gathers_of(program);
    std::erase_if(gathers, [](const Gathered& g) { return g.name == "values.model.norm.value"; });  // it hides nothing
    ASSERT_GT(gathers.size(), 12u);
    for (std::size_t n = 2; n < gathers.size(); ++n) {
      const auto &g = gathers[n], &before = gathers[n - 1], &earlier = gathers[n - 2];
      EXPECT_EQ(lanes[g.record], Lane::gather);
      for (const int r : found.waits[g.record])
        EXPECT_LT(static_cast<std::size_t>(r), before.first) << g.name << " waits for the block before";
      EXPECT_LE(g.record, before.first) << g.name << " begins with the block before";
      EXPECT_LT(g.record, g.first);
      EXPECT_GE(g.record, earlier.first);
      for (std::size_t i = g.record + 1; i < g.first; ++i)
        for (const int r : found.waits[i])
          EXPECT_NE(static_cast<std::size_t>(r), g.record) << "record " << i << " waits for " << g.name;
    }
  });
}

struct Adapted : ::testing::Test {
  io::TempFolder tmp;

  Adapted() {
    for (const auto type : {DType::f32, DType::bf16}) {
      auto c = models::tiny(io::Family::llama);
      LanguageModel::create(c, 3, false).save(tmp / std::string(dtype_name(type)), type);
    }
  }
  LanguageModel open(DType type, std::optional<std::uint64_t> seed) const {
    return LanguageModel::open_for_adapting(tmp / std::string(dtype_name(type)),
                                            {.method = models::AdapterMethod::lora, .r = 3, .alpha = 6}, seed);
  }
  std::vector<Learned> train(DType type, int n, int zero) const {
    std::vector<Learned> all(static_cast<std::size_t>(n));
    testing::run_ranks(n, [&](const comm::Group& world) {
      auto model = open(type, 5);
      Pool pool(1);
      TrainStep step(model, pool, {.batch = 2, .length = 16, .data = world, .zero = zero});
      std::vector<double> numbers;
      for (int i = 0; i < 8; ++i) {
        const auto seed = static_cast<std::uint32_t>(10 * i + world.rank());
        step.accumulate(models::tiny_ids(seed), models::tiny_ids(seed + 5000), i, 0);
        const auto r = step.update(1e-2, 32);
        numbers.insert(numbers.end(), {r.loss, r.grad_norm});
      }
      numbers.push_back(step.evaluate(models::tiny_ids(7), models::tiny_ids(8)).loss);
      all[static_cast<std::size_t>(world.rank())] = learned(step, model, std::move(numbers));
    });
    return all;
  }
};

/// An adapter learns the same bits, whatever type the frozen weights of its model have.
TEST_F(Adapted, adapters_learn_the_same_bits) {
  for (const auto type : {DType::f32, DType::bf16})
    for (const int n : {2, 3}) {
      const auto want = train(type, n, 0);
      for (const int zero : {1, 2, 3})
        expect_same(train(type, n, zero), want, "on " + std::to_string(n) + ", zero " + std::to_string(zero));
    }
}

/// With stage 3, a rank keeps its share of the frozen weights, too, and gathers a block for forward and for backward.
TEST_F(Adapted, frozen_weights_are_divided) {
  const auto mesh = parallel::Mesh::described({.dp = 4}, 1);
  std::int64_t kept[2] = {};
  for (const int zero : {0, 3}) {
    auto model = open(DType::bf16, {});
    Pool pool(1);
    Stream s(pool);
    const StepPrograms p(model, {.batch = 2, .length = 16, .data = mesh.dp(), .zero = zero}, s);
    model.state().for_each([&](const StateEntry& e) {
      if (e.role == StateRole::frozen && e.counted) kept[zero / 3] += e.memory.bytes();
    });
    if (zero == 0) continue;
    std::map<std::string, int> times;
    for (const auto& g : gathers_of(p.first()->planned->program)) ++times[g.name];
    EXPECT_EQ(times["frozen.model.layers.0.frozen"], 2);
    EXPECT_EQ(to_bytes(program_of(to_bytes(p.first()->planned->program), "FILE")),
              to_bytes(p.first()->planned->program));
  }
  EXPECT_GT(kept[1], 0);
  EXPECT_LE(kept[1], kept[0] / 4 + 4 * 8192) << "of this rank, which is the second of four";
}

TEST(zero, a_stage_that_does_not_exist_is_refused) {
  EXPECT_THROW(with_programs(2, 5, false, [](const StepPrograms&) {}), Error);
  EXPECT_THROW(with_layers(1, [](StepOptions& o) { o.gather_ahead = -1; }, [](const StepPrograms&) {}), Error);
}

}  // namespace
}  // namespace hpcdl::train
