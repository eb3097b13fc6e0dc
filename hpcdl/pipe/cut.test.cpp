// A pass that is cut into stages gives the same bits as the whole pass, in the order of any schedule.

#include "hpcdl/pipe/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/nn/vocabulary_share.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/micro_batch.h"
#include "hpcdl/pipe/waits.h"
#include "hpcdl/pipe/weight_pass.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::pipe {
namespace {

constexpr int kMicros = 3;

io::ModelConfig untied(io::Family family) {
  auto config = models::tiny(family);
  config.tied = false;  // two stages would add to the gradient of a shared table in another order
  return config;
}

/// A model, and what a step leaves behind: the losses and all gradients.
class Step {
 public:
  explicit Step(io::Family family)
      : model_(models::LanguageModel::create(untied(family), 1, true)), pool_(1), stream_(pool_) {
    for (const auto& p : model_.parameters())
      std::memset(p.gradient->memory.data(), 0, static_cast<std::size_t>(p.gradient->memory.bytes()));
    micro_ = record_micro_batch(model_, {.batch = 2, .length = 16}, Write::accumulate);
  }

  const Program& program() const { return micro_.recording.program; }

  void run_whole() {
    const Instance whole(Pass{planned(program(), micro_.inputs, micro_.outputs), micro_.recording.bindings});
    for (int m = 0; m < kMicros; ++m) {
      for (std::size_t i = 0; i < micro_.inputs.size(); ++i) fill(whole.input(i), m, i);
      whole.run(stream_);
      losses_.push_back(*whole.output(0).ptr<float>());
    }
  }

  /// In an order in which all ranks could have computed the actions, on this thread.
  void run_cut(const Partition& partition, const Schedule& orders) {
    bool halves = false;
    for (const auto& list : orders.of_rank)
      for (const auto& a : list) halves |= a.act == Act::weight_gradient;
    const auto parts = cut(program(), partition, halves ? Backward::halves : Backward::whole);
    std::vector<Frame> frames;
    for (int m = 0; m < kMicros; ++m) frames.push_back(frame(parts, m));
    const Waits waits(orders, Wiring::links);
    std::vector<const Action*> actions(waits.size());
    for (int rank = 0; rank < orders.ranks(); ++rank)
      for (std::size_t i = 0; i < orders.of_rank[static_cast<std::size_t>(rank)].size(); ++i)
        actions[static_cast<std::size_t>(waits.node(rank, i))] = &orders.of_rank[static_cast<std::size_t>(rank)][i];
    for (const int node : waits.order()) {
      const auto* a = actions[static_cast<std::size_t>(node)];
      if (!a) continue;
      const auto& of = a->act == Act::forward           ? parts.forward
                       : a->act == Act::weight_gradient ? parts.weights
                                                        : parts.backward;
      Instance(
          Pass{planned(of[static_cast<std::size_t>(a->stage)]), frames[static_cast<std::size_t>(a->micro)].bindings})
          .run(stream_);
    }
    for (const auto& f : frames) losses_.push_back(*f.loss.ptr<float>());
  }

  std::vector<std::string> bits() const {
    std::vector<std::string> list;
    for (const auto& p : model_.parameters()) {
      const auto& g = p.gradient->memory;
      list.emplace_back(static_cast<const char*>(g.data()), static_cast<std::size_t>(g.bytes()));
    }
    list.emplace_back(reinterpret_cast<const char*>(losses_.data()), losses_.size() * sizeof(float));
    return list;
  }

 private:
  struct Frame {
    std::vector<OwnedTensor> memory;
    Bindings bindings;
    Tensor loss;
  };

  static void fill(const Tensor& to, int micro, std::size_t input) {
    const auto ids = models::tiny_ids(static_cast<std::uint32_t>(7 * micro + 1) + static_cast<std::uint32_t>(input));
    std::memcpy(to.data(), ids.data(), ids.size() * sizeof(ids[0]));
  }

  Frame frame(const Cut& parts, int micro) const {
    Frame f{.memory = {}, .bindings = micro_.recording.bindings, .loss = {}};
    for (const auto& c : parts.carried) {
      f.memory.emplace_back(parts.forward[0].slots[static_cast<std::size_t>(c.slot)].spec);
      const Tensor& t = f.memory.back().tensor;
      f.bindings.bind(c.name, t);
      for (std::size_t i = 0; i < micro_.inputs.size(); ++i)
        if (micro_.inputs[i].operand().slot == c.slot) fill(t, micro, i);
      if (micro_.outputs[0].operand().slot == c.slot) f.loss = t;
    }
    return f;
  }

  models::LanguageModel model_;
  Pool pool_;
  Stream stream_;
  RecordedMicroBatch micro_;
  std::vector<float> losses_;
};

TEST(cut, every_schedule_gives_the_bits_of_the_whole_pass) {
  for (const auto family : models::text_families()) {
    Step whole(family);
    whole.run_whole();
    for (const auto& [partition, ranks] : std::vector<std::pair<Partition, int>>{
             {{2, 2}, 2}, {{1, 2, 1}, 3}, {{1, 1, 1, 1}, 2}, {{3, 1}, 1}, {{4}, 1}}) {
      const int stages = static_cast<int>(partition.size());
      for (const auto& kind : schedule_kinds()) {
        const PipeShape shape{.ranks = ranks, .chunks = stages / ranks, .micros = kMicros};
        if (shape.chunks < kind.least_chunks || shape.chunks > kind.most_chunks) continue;
        Step step(family);
        step.run_cut(partition, make_schedule(kind, shape));
        EXPECT_EQ(step.bits(), whole.bits())
            << kind.name << " with " << stages << " stages of " << io::enum_name(family);
      }
    }
  }
}

TEST(cut, keeps_every_record_and_its_order) {
  const Step step(io::Family::llama);
  const auto parts = cut(step.program(), {1, 2, 1});
  std::vector<const Program*> in_order;
  for (const auto& p : parts.forward) in_order.push_back(&p);
  for (std::size_t s = parts.backward.size(); s-- > 0;) in_order.push_back(&parts.backward[s]);
  std::size_t at = 0;
  for (const auto* p : in_order)
    for (const auto& r : p->records) {
      const auto& whole = step.program().records.at(at++);
      EXPECT_EQ(r.op, whole.op);
      EXPECT_EQ(r.operands, whole.operands);
      EXPECT_EQ(r.args, whole.args);
    }
  EXPECT_EQ(at, step.program().records.size());
}

TEST(cut, copies_what_later_records_would_overwrite) {
  const Step step(io::Family::llama);
  const auto apart = weight_pass(step.program());
  EXPECT_EQ(digest(strip(apart)), digest(step.program()));
  const auto count = [](const Program& p) {
    return std::count_if(p.records.begin(), p.records.end(), [](const Record& r) { return r.op == "cast"; });
  };
  // Of each block the gradient of the residual stream, which two products of weights read, each before a norm adds to
  // it. That of the first normed value is complete when q's weights are the last to read it.
  EXPECT_EQ(count(apart) - count(step.program()), 2 * 2);
  const auto parts = cut(step.program(), {1, 2, 1}, Backward::halves);
  EXPECT_EQ(parts.weights[1].records.size(), 2u * 7);
  EXPECT_EQ(parts.weights[0].records.size(), 1u) << "the table of the embedding";
}

TEST(cut, carries_no_more_than_crosses) {
  const Step step(io::Family::llama);
  const auto bytes = [&](const Partition& partition) {
    std::int64_t sum = 0;
    for (const auto& c : cut(step.program(), partition).carried)
      sum += step.program().slots[static_cast<std::size_t>(c.slot)].spec.bytes();
    return sum;
  };
  const std::int64_t boundary = 2 * 16 * 32 * 4;
  EXPECT_LE(bytes({2, 2}) - bytes({4}), 2 * boundary) << "one cut more: an activation and a gradient at most";
}

/// Every record is in one program, or an exchange; and what is exchanged is found.
TEST(cut, a_divided_vocabulary_is_in_no_stage) {
  for (const int barriers : {1, 2})
    for (const auto family : {io::Family::gpt2, io::Family::llama}) {
      const auto share = std::make_shared<nn::VocabularyShare>();
      share->axis = Axis("pp", 2, nullptr), share->barriers = barriers;
      const auto config = untied(family);
      const auto model = models::LanguageModel::create(config, {}, true, {}, {}, {}, models::Values::later, share);
      const auto micro = record_micro_batch(model, {.batch = 2, .length = 16}, Write::accumulate);
      const auto& pass = micro.recording.program;
      for (const auto backward : {Backward::whole, Backward::halves}) {
        const auto parts = cut(pass, {2, 2}, backward);
        ASSERT_TRUE(parts.vocabulary);
        const auto& v = *parts.vocabulary;
        std::size_t records = 0;
        for (const auto* list : {&parts.forward, &parts.backward, &parts.weights})
          for (const auto& p : *list) records += p.records.size();
        for (const auto* p : {&v.lookup, &v.logits, &v.loss, &v.lookup_gradient, &v.merge})
          records += p->records.size();
        for (const auto* p : {&v.lookup, &v.logits, &v.loss, &v.lookup_gradient}) EXPECT_FALSE(p->records.empty());
        const auto whole = backward == Backward::halves ? weight_pass(pass) : pass;
        const auto exchanges = std::count_if(whole.records.begin(), whole.records.end(), [](const Record& r) {
          return r.op == "all_reduce" || r.op == "all_gather";
        });
        EXPECT_EQ(exchanges, 3) << "rows; statistics; gradients or what they are made of";
        EXPECT_EQ(records + static_cast<std::size_t>(exchanges), whole.records.size());
        EXPECT_EQ(v.merge.records.size(), barriers == 1 ? 1u : 0u);
        const auto bytes = [&](int slot) { return whole.slots.at(static_cast<std::size_t>(slot)).spec.bytes(); };
        const std::int64_t rows = 2 * 16, hidden = rows * config.width * 4;
        for (const int slot : {v.rows, v.hidden, v.gradient, v.rows_gradient}) EXPECT_EQ(bytes(slot), hidden);
        EXPECT_EQ(bytes(v.mine), 4 * rows * 4);
        EXPECT_EQ(bytes(v.all), 2 * 4 * rows * 4);
        ASSERT_EQ(v.summands >= 0, barriers == 1);
        if (barriers == 2) continue;
        EXPECT_EQ(bytes(v.summands), 2 * hidden);
        EXPECT_EQ(bytes(v.all_summands), 2 * 2 * hidden);
      }
    }
}

TEST(cut, refuses_a_partition_of_other_layers) {
  const Step step(io::Family::llama);
  EXPECT_THROW(cut(step.program(), {2, 3}), Error);
}

}  // namespace
}  // namespace hpcdl::pipe
