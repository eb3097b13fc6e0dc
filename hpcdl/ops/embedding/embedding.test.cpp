#include "hpcdl/ops/embedding/embedding.spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/testing/op_spec.h"

namespace hpcdl {
namespace {

using testing::Input;

const auto f32 = DType::f32;

const auto
    spec =
        testing::op<Embedding>(
            {
                .cases =
                    {
                        {.in = {{1, 1}, Input::indices({1}, 1), Input::none(), Input::none()}},
                        {.in = {{5, 7}, Input::indices({3}, 5), Input::none(), Input::none()}},
                        {.in = {{9, 33}, Input::indices({2, 17}, 9), {20, 33}, Input::none()}},
                        {.in = {{9, 33}, Input::indices({2, 17}, 9), {5, 33}, Input::indices({2, 17}, 5)},
                         .gradient = false},
                        {.in = {{3, 64},
                                Input::indices({4, 50}, 3),
                                Input({50, 64}).as(f32),
                                Input::none()}},  // many tokens per row
                        {.in = {Input({600, 70}).as(f32), Input::indices({2, 3, 40}, 600), Input({64, 70}).as(f32),
                                Input::none()},
                         .args = {.out = DType::bf16}},
                        {.in = {{40, 130}, Input::indices({300}, 40), Input::none(), Input::none()},
                         .args = {.out = f32}},
                        {.in = {{4, 8}, Input::indices({0}, 4), Input::none(), Input::none()}},
                        {.in = {{2, 9},
                                Input::indices({6000}, 2),
                                Input::none(),
                                Input::none()}},  // more tokens of one id than a GPU's block sorts
                        {.in = {{9, 12},
                                Input::indices({3000}, 9),
                                Input::none(),
                                Input::none()}},  // one id in several chunks
                    },
                .contracts = contract::embedding_contracts(),
            });

struct Fixture {
  static constexpr int vocab = 4, n = 5, tokens = 6;
  std::vector<float> table = std::vector<float>(vocab * n), positions = std::vector<float>(10 * n),
                     y = std::vector<float>(tokens * n);
  std::vector<std::int32_t> ids{0, 3, -1, 4, 2147483647, 3};
  Pool pool{1};
  StepParams params;
  Stream s{pool, &params};
  Tensor table_t{table.data(), {{vocab, n}, f32}}, positions_t{positions.data(), {{10, n}, f32}},
      y_t{y.data(), {{tokens, n}, f32}};
  View ids_t{ids.data(), {{tokens}, DType::i32}};
  Fixture() {
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = 100 * static_cast<float>(i / n);
  }
};

TEST(Embedding, UnknownIdsGiveNanAndNoGradient) {
  Fixture f;
  Embedding::forward(f.s, f.y_t, f.table_t, f.ids_t, {}, {}, {});
  for (int t : {2, 3, 4}) EXPECT_TRUE(std::isnan(f.y[static_cast<std::size_t>(t * f.n)])) << t;
  EXPECT_EQ(f.y[Fixture::n], 15);
  std::vector<float> dtable(f.table.size(), -1), dy(f.y.size(), 1);
  std::vector<std::int32_t> starts(5), order(6);
  Embedding::backward(f.s, Grad(Tensor(dtable.data(), f.table_t.spec()), Write::overwrite), {}, f.ids_t,
                      View(dy.data(), f.y_t.spec()), Tensor(starts.data(), {{5}, DType::i32}),
                      Tensor(order.data(), {{6}, DType::i32}), {}, {}, {});
  for (int v = 0; v < f.vocab; ++v)
    EXPECT_EQ(dtable[static_cast<std::size_t>(v * f.n)], v == 0 ? 1 : v == 3 ? 2 : 0) << v;
}

TEST(Embedding, PlacesSayWhichPositionIsAdded) {
  Fixture f;
  f.ids.assign(f.ids.size(), 1);
  const std::vector<std::int32_t> places{9, 0, 3, 3, 10, -1};
  Embedding::forward(f.s, f.y_t, f.table_t, f.ids_t, f.positions_t, View(places.data(), f.ids_t.spec()), {});
  for (std::size_t t = 0; t < 4; ++t)
    EXPECT_EQ(f.y[t * static_cast<std::size_t>(f.n)], 5.0f + 100.0f * static_cast<float>(places[t]));
  for (int t : {4, 5}) EXPECT_TRUE(std::isnan(f.y[static_cast<std::size_t>(t * f.n)])) << "no such position";
  Graph g;
  OwnedTensor table(f.table_t.spec()), gradient(f.table_t.spec());
  const Var ids = g.input("ids", f.ids_t.spec());
  EXPECT_THROW(
      embedding(g.parameter("table", table.tensor, gradient.tensor), ids, g.input("p", f.positions_t.spec()), {}, ids),
      Error)
      << "there is no gradient with places";
}

/// Overwriting clears the whole gradient of the table; accumulating touches only the rows of the ids, which depend on
/// data.
TEST(Embedding, AddingToAGradientChargesNoRowOfTheTable) {
  OwnedTensor table({{5000, 8}, DType::f32}), gradient({{5000, 8}, DType::f32});
  double bytes[2];
  for (const Write write : {Write::overwrite, Write::accumulate}) {
    Graph g({.parameter_gradients = write});
    const Var y = embedding(g.parameter("table", table.tensor, gradient.tensor), g.input("ids", {{2, 3}, DType::i32}));
    g.backward(y, g.input("dy", y.spec()));
    bytes[write == Write::accumulate] = g.finish().program.records.back().cost.bytes();
  }
  const double tokens = 6 * 4 + 6 * 8 * 4;  // ids and dy
  EXPECT_EQ(bytes[0], tokens + 5000 * 8 * 4);
  EXPECT_EQ(bytes[1], tokens);
}

}  // namespace
}  // namespace hpcdl
