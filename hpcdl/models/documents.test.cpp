// Rows that hold several documents, against each document as a row of its own.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "hpcdl/instance.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::models {
namespace {

using Document = std::vector<std::int32_t>;

/// Of one token and of many; the first row of 16 is full, and the second is not.
std::vector<std::vector<Document>> rows() {
  const auto ids = tiny_ids(9);
  const auto cut = [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
    return Document(ids.begin() + begin, ids.begin() + begin + count);
  };
  return {{cut(0, 7), cut(7, 2), cut(9, 7)}, {cut(16, 1), cut(17, 11)}};
}

/// The sum of losses, and the gradients.
struct Learned {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
};

/// A pass over rows of `length` tokens: the target of each is the token after it in its document, and of the last one
/// the first.
Learned pass(LanguageModel& m, const std::vector<std::vector<Document>>& packed, std::int64_t length,
             const nn::ForwardOptions& o) {
  const auto batch = std::ssize(packed);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(batch * length)), positions(tokens.size()),
      targets(tokens.size(), -1);
  for (std::size_t r = 0; r < packed.size(); ++r) {
    auto at = r * static_cast<std::size_t>(length);
    for (const auto& d : packed[r])
      for (std::size_t i = 0; i < d.size(); ++i, ++at)
        tokens[at] = d[i], targets[at] = d[(i + 1) % d.size()], positions[at] = static_cast<std::int32_t>(i);
  }
  Pool pool(2);
  StepParams params;
  Stream stream(pool, &params);
  Graph g;
  std::vector<Var> in;
  for (const auto& spec : m.inputs(batch, length, o)) in.push_back(g.input(std::string(spec.name), spec.spec));
  EXPECT_EQ(in.size(), o.documents ? 3u : 2u);
  const Var loss = g.keep(m.pass(g, in, o).loss);
  g.backward(loss);
  const Instance exe(g.finish());
  const std::vector<std::int32_t>* values[] = {&tokens, &targets, &positions};
  for (std::size_t i = 0; i < in.size(); ++i)
    std::memcpy(exe.tensor(in[i]).data(), values[i]->data(), values[i]->size() * sizeof(std::int32_t));
  exe.run(stream);
  Learned learned{.loss = static_cast<double>(*exe.tensor(loss).ptr<float>()), .gradients = {}};
  for (const auto& p : m.parameters()) {
    const auto* x = p.gradient->memory.ptr<float>();
    learned.gradients[p.name].assign(x, x + p.gradient->memory.size());
  }
  return learned;
}

struct Documents : ::testing::TestWithParam<io::Family> {};

TEST_P(Documents, learn_what_each_of_them_does_alone) {
  auto model = LanguageModel::create(tiny(GetParam()), 7, true);
  for (const bool recompute : {false, true}) {
    Learned alone;
    for (const auto& row : rows())
      for (const auto& d : row) {
        const auto one = pass(model, {{d}}, std::ssize(d), {.recompute = recompute});
        alone.loss += one.loss;
        for (const auto& [name, values] : one.gradients) {
          auto& sum = alone.gradients[name];
          sum.resize(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
        }
      }
    const auto packed = pass(model, rows(), 16, {.recompute = recompute, .documents = true});
    EXPECT_NEAR(packed.loss, alone.loss, 1e-6 * alone.loss);
    for (const auto& [name, want] : alone.gradients) {
      double top = 0;
      for (const float x : want) top = std::max(top, std::fabs(double{x}));
      const auto& got = packed.gradients.at(name);
      for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5 * top) << name << " " << i;
    }
    const auto together = pass(model, rows(), 16, {.recompute = recompute});
    EXPECT_GT(std::fabs(together.loss - alone.loss), 1e-5 * alone.loss) << "without .documents they see each other";
  }
}

INSTANTIATE_TEST_SUITE_P(some, Documents,
                         ::testing::Values(io::Family::gpt2, io::Family::llama, io::Family::gemma2,
                                           io::Family::mixtral),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

}  // namespace
}  // namespace hpcdl::models
