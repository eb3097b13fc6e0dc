// Autocast: which casts are recorded, and that programs under it are valid.

#include "hpcdl/autocast.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/graph/text.h"
#include "hpcdl/instance.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/cross_entropy/cross_entropy.h"
#include "hpcdl/ops/fill/fill.h"
#include "hpcdl/ops/layer_norm/layer_norm.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/matmul/matmul.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/program/format.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/devices.h"

namespace hpcdl {
namespace {

using models::LanguageModel;
using models::tiny;
using models::tiny_ids;

const Spec kSquare{{4, 4}, DType::f32};

int casts_in(const Program& p, Phase phase = Phase::forward) {
  int n = 0;
  for (const auto& r : p.records) n += r.op == Cast::name && r.phase == phase;
  return n;
}

/// op, phase and operand types of every record.
std::string outline(const Program& p) {
  std::string out;
  for (const auto& r : p.records) {
    out += fmt::format("{} {}", r.op, phase_name(r.phase));
    for (std::uint32_t k = 0; k < r.operand_count; ++k)
      out += fmt::format(" {}", dtype_name(p.operands[r.operands + k].spec.dtype));
    out += "\n";
  }
  return out;
}

TEST(autocast, each_class_computes_in_its_type) {
  for (const DType half : {DType::bf16, DType::f16}) {
    Graph g;
    const Var x = g.input("x", kSquare), w = g.input("w", kSquare), ones = g.input("ones", {{4}, DType::f32});
    const Var labels = g.input("labels", {{4}, DType::i32});
    const Graph::Autocast scope(g, AutocastPolicy{.product = half});
    const Var product = matmul(x, w);
    EXPECT_EQ(product.dtype(), half);
    EXPECT_EQ(layer_norm(product, ones, ones).dtype(), half) << "f32 inside, for every input type";
    EXPECT_EQ(softmax(product).dtype(), half);
    EXPECT_EQ(add(product, product).dtype(), half);
    EXPECT_EQ(add(product, x).dtype(), DType::f32) << "the wider of the two";
    EXPECT_EQ(linear(x, w, ones, {}, x).dtype(), half) << "the residual is cast, too";
    EXPECT_EQ(cross_entropy(product, labels)[0].dtype(), DType::f32);
    {
      const Graph::Autocast strict(g, AutocastPolicy::strict(half));
      EXPECT_EQ(matmul(x, w).dtype(), half);
      EXPECT_EQ(layer_norm(product, ones, ones).dtype(), DType::f32);
      EXPECT_EQ(softmax(product).dtype(), DType::f32);
      const Graph::Autocast off(g, std::nullopt);
      EXPECT_EQ(matmul(x, w).dtype(), DType::f32);
    }
    EXPECT_EQ(softmax(product).dtype(), half) << "the outer policy again";
  }
}

TEST(autocast, a_value_is_cast_once_and_again_after_a_raw_record_wrote_it) {
  Graph g;
  OwnedTensor memory(kSquare), gradient(kSquare);
  const Var x = g.input("x", kSquare), w = g.parameter("w", memory.tensor, gradient.tensor);
  const Graph::Autocast scope(g, AutocastPolicy{});
  matmul(x, w), matmul(x, w), matmul(w, x);
  EXPECT_EQ(casts_in(g.program()), 2);
  Operand o = w.operand();
  o.access = Access::write;
  const Fill::Args args{1};
  g.emit(Fill::name, op_info<Fill>.forward, std::span(&o, 1), &args, sizeof args, {});
  matmul(x, w);
  EXPECT_EQ(casts_in(g.program()), 3);
  g.checkpoint([&] { return matmul(x, w); });
  EXPECT_EQ(casts_in(g.program()), 4)
      << "in a recomputed segment an input of the program is cast again, but not a parameter";
}

TEST(autocast, weights_of_layers_are_rounded_by_the_product_and_copies_are_read) {
  nn::Param p;
  p.name = "w", p.value = p.gradient = kSquare;
  for (const bool copies : {false, true}) {
    Graph g;
    if (copies) p.copy = {kSquare.shape, DType::bf16};
    const Var x = g.input("x", kSquare);
    const Graph::Autocast scope(g, AutocastPolicy{});
    const Var w = p.rounded(g, x.dtype());
    EXPECT_EQ(w.dtype(), copies ? DType::bf16 : DType::f32);
    linear(x, w);
    EXPECT_EQ(casts_in(g.program()), 1) << "only x";
  }
}

TEST(autocast, a_program_tells_its_policies) {
  Graph g;
  { const Graph::Autocast scope(g, AutocastPolicy{.product = DType::f16}); }
  { const Graph::Autocast scope(g, AutocastPolicy{.product = DType::f16}); }
  softmax(g.input("x", kSquare));
  const auto text = program_text(g.program(), plan(g.program()));
  EXPECT_NE(text.find("autocast: products F16 with f32 sums, norms as their input, f32 inside"), std::string::npos)
      << text;
  EXPECT_EQ(g.program().autocasts.size(), 1u);
  EXPECT_THROW(Graph::Autocast(g, AutocastPolicy{.product = DType::i32}), Error);
}

// ---------------------------------------------------------------- of whole models

struct How {
  std::optional<AutocastPolicy> policy = {};
  nn::ForwardOptions forward = {};
  bool eager = false;
  bool copies = false;
};

Program recorded(const LanguageModel& model, const How& how, Stream* eager, float* loss) {
  Graph g({.eager = eager});
  OwnedTensor tokens({{2, 16}, DType::i32}), targets({{2, 16}, DType::i32});
  std::memcpy(tokens.tensor.data(), tiny_ids(1).data(), 128),
      std::memcpy(targets.tensor.data(), tiny_ids(2).data(), 128);
  const Graph::Autocast scope(g, how.policy);
  const Var sum =
      g.keep(model.loss(g, g.constant("tokens", tokens.tensor), g.constant("targets", targets.tensor), how.forward));
  g.backward(sum);
  if (eager) return *loss = *g.eager_tensor(sum).ptr<float>(), g.finish().program;
  Instance exe(g.finish());
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  exe.run(s);
  *loss = *exe.tensor(sum).ptr<float>();
  return exe.program();
}

struct Outcome {
  float loss;
  std::vector<float> gradients;
  std::string outline;
};

Outcome outcome(io::Family family, const How& how) {
  auto model = LanguageModel::create(tiny(family), 3, true);
  Pool pool(2);
  StepParams params;
  Stream s(pool, &params);
  if (how.copies) model.keep_copies(how.policy->product), model.round_copies(s);
  Outcome o{};
  o.outline = outline(recorded(model, how, how.eager ? &s : nullptr, &o.loss));
  for (const auto& p : model.parameters())
    o.gradients.insert(o.gradients.end(), p.gradient->memory.ptr<float>(),
                       p.gradient->memory.ptr<float>() + p.memory.size());
  return o;
}

class Models : public ::testing::TestWithParam<std::tuple<io::Family, DType>> {
 protected:
  io::Family family() const { return std::get<0>(GetParam()); }
  DType half() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(autocast, Models,
                         ::testing::Combine(::testing::Values(io::Family::gpt2, io::Family::llama),
                                            ::testing::Values(DType::bf16, DType::f16)));

TEST_P(Models, that_name_their_types_are_left_alone) {
  const Outcome alone = outcome(family(), {.forward = {.compute = half()}});
  const Outcome under =
      outcome(family(), {.policy = AutocastPolicy{.product = half()}, .forward = {.compute = half()}});
  EXPECT_EQ(alone.outline, under.outline);
  EXPECT_EQ(alone.loss, under.loss);
  EXPECT_EQ(alone.gradients, under.gradients);
}

TEST_P(Models, give_the_same_bits_eager_replayed_recomputed_and_with_copies) {
  const AutocastPolicy policy{.product = half()};
  const Outcome plain = outcome(family(), {.policy = policy});
  EXPECT_NE(plain.outline.find("cast forward"), std::string::npos);
  EXPECT_NE(plain.outline, outcome(family(), {}).outline);
  std::vector<How> others{{.policy = policy, .eager = true}, {.policy = policy, .forward = {.recompute = true}}};
  // In f16 the head multiplies its gradients in f32, with the weights in their given type (ops/lm_head_loss).
  if (half() == DType::bf16) others.push_back({.policy = policy, .copies = true});
  for (const auto& how : others) {
    const Outcome o = outcome(family(), how);
    EXPECT_EQ(plain.loss, o.loss);
    EXPECT_EQ(plain.gradients, o.gradients);
  }
  // The strict policy computes the same, with fewer roundings.
  const Outcome strict = outcome(family(), {.policy = AutocastPolicy::strict(half())});
  EXPECT_NE(strict.outline, plain.outline);
  EXPECT_NEAR(strict.loss, plain.loss, 0x1p-7 * plain.loss);
}

class OnDevice : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(autocast, OnDevice, ::testing::ValuesIn(testing::devices()), testing::device_kind);

/// Replays, which a GPU captures, equal the first run.
TEST_P(OnDevice, a_recorded_step_is_replayed) {
  Pool pool(2);
  StepParams params;
  Stream s(GetParam(), pool, &params);
  auto model = LanguageModel::create(tiny(io::Family::llama), 3, true);
  model.to_device(s);
  Graph g;
  const Var tokens = g.input("tokens", {{2, 16}, DType::i32}), targets = g.input("targets", {{2, 16}, DType::i32});
  const Graph::Autocast scope(g, AutocastPolicy{.product = DType::f16});
  const Var sum = g.keep(model.loss(g, tokens, targets));
  g.backward(sum);
  Instance exe(g.finish(), nullptr, GetParam());
  copy(s, exe.tensor(tokens), View(tiny_ids(1).data(), tokens.spec()));
  copy(s, exe.tensor(targets), View(tiny_ids(2).data(), targets.spec()));
  std::vector<float> losses;
  for (int i = 0; i < 3; ++i) {
    exe.run(s);
    if (i == 0) exe.capture(s);
    float loss = 0;
    copy(s, Tensor(&loss, {{1}, DType::f32}), exe.tensor(sum));
    s.synchronize();
    losses.push_back(loss);
  }
  EXPECT_GT(losses[0], 32 * 3.0f);
  EXPECT_LT(losses[0], 32 * 5.0f);
  EXPECT_EQ(losses, std::vector<float>(3, losses[0]));
}

}  // namespace
}  // namespace hpcdl
