#include "hpcdl/state/table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/graph.h"
#include "hpcdl/pool.h"

namespace hpcdl {
namespace {

/// A matrix of which this holder has two columns, a convolution that memory holds as (N, H, W, C), a bias that is
/// absent, a running mean and a counter.
struct Parts {
  nn::Param matrix, conv, bias, mean, passes;
  StateTable table{{&matrix, &conv, &bias, &mean, &passes}};

  Parts() {
    matrix.name = "fc.weight", matrix.part = Part::along({4, 6}, 1, std::array{Interval{2, 4}});
    matrix.spec = {matrix.part.local, DType::f32}, matrix.multiplied = matrix.decay = true;
    conv.name = "conv.weight", conv.spec = {{2, 1, 3, 2}, DType::f32}, conv.channels_last = conv.spec.shape;
    bias.name = "fc.bias";
    mean.name = "norm.mean", mean.spec = {{3}, DType::f32}, mean.role = nn::Role::state;
    passes.name = "norm.passes", passes.spec = {{}, DType::i64}, passes.role = nn::Role::counter;
  }
  void open(bool gradients) { table.allocate(gradients); }
  /// Where a program finds the gradient of the matrix.
  const void* gradient_of_matrix() const {
    Graph g;
    table.bind(g);
    matrix(g);
    return g.finish().bindings.memory("fc.weight.grad").data();
  }
  std::map<StateRole, std::string> names() const {
    std::map<StateRole, std::string> list;
    table.for_each([&](const StateEntry& e) { list[e.role] += e.name + " "; });
    return list;
  }
};

TEST(state_table, all_kept_tensors_are_listed_once) {
  Parts p;
  p.open(true);
  p.table.keep_copies(DType::bf16);
  const std::string_view kept[] = {"m", "v"};
  auto moments = p.table.add_moments(kept);
  auto names = p.names();
  EXPECT_EQ(names[StateRole::value], "fc.weight conv.weight ");
  EXPECT_EQ(names[StateRole::gradient], "fc.weight.grad conv.weight.grad ");
  EXPECT_EQ(names[StateRole::copy], "fc.weight.copy ");
  EXPECT_EQ(names[StateRole::buffer], "norm.mean ");
  EXPECT_EQ(names[StateRole::counter], "norm.passes ");
  EXPECT_EQ(names[StateRole::moment], "fc.weight.m fc.weight.v conv.weight.m conv.weight.v ");
  const auto& matrix = p.table.parameters()[0];
  EXPECT_EQ(matrix.whole(), (Spec{{4, 6}, DType::f32}));
  EXPECT_EQ(moments->entries[1].whole(), matrix.whole()) << "moments must be parts like their parameter";
  EXPECT_EQ(matrix.gradient->name, "fc.weight.grad");
  EXPECT_EQ(matrix.copy->memory.dtype(), DType::bf16);
  EXPECT_EQ(p.table.parameters()[1].copy, nullptr) << "not read as a matrix by any product";
  EXPECT_EQ(p.table.parameter_count(), 24 + 12);
  moments = nullptr;
  EXPECT_FALSE(p.names().contains(StateRole::moment)) << "moments must be removed with their optimizer";
}

TEST(state_table, values_in_own_memory_may_stay_on_the_host) {
  Parts p;
  p.open(true);
  const auto named = [](std::string_view name) { return [name](const StateEntry& e) { return e.name == name; }; };
  p.table.keep_on_host(named("conv.weight"));
  EXPECT_FALSE(p.table.parameters()[0].on_host);
  EXPECT_TRUE(p.table.parameters()[1].on_host);
  p.table.keep_on_host(nullptr);
  EXPECT_FALSE(p.table.parameters()[1].on_host);
  const std::string_view kept[] = {"m"};
  const auto moments = p.table.add_moments(kept, {.on_host = true});
  EXPECT_EQ(moments->entries[0].host.data(), moments->entries[0].memory.data()) << "files are written from there";

  const OwnedTensor theirs({{5}, DType::f32});
  nn::Param other;
  other.name = "other", other.spec = theirs.tensor.spec();
  StateTable added({&other});
  added.add_value(other, theirs.tensor);
  added.keep_on_host(named("other"));
  EXPECT_FALSE(added.parameters()[0].on_host) << "memory of the caller cannot be page-locked here";
}

/// What programs of a device read may lie in memory that another owner fills.
TEST(state_table, entries_lie_elsewhere_if_somebody_says_so) {
  const OwnedTensor theirs({{5}, DType::f32}), there({{5}, DType::f32});
  nn::Param first, second;
  first.name = "first", second.name = "second", first.spec = second.spec = theirs.tensor.spec();
  StateTable table({&first, &second});
  table.add_value(first, theirs.tensor), table.add_value(second, theirs.tensor);
  Pool pool(1);
  table.to_device(Stream(pool), {}, [&](const StateEntry& e) { return e.name == "second" ? there.tensor : Tensor(); });
  EXPECT_EQ(table.parameters()[0].memory.data(), theirs.tensor.data());
  EXPECT_EQ(table.parameters()[1].memory.data(), there.tensor.data());
}

TEST(state_table, gradients_lie_where_they_were_placed) {
  Parts p;
  p.open(true);
  const auto own = p.table.bytes();
  OwnedTensor there({{20}, DType::f32});
  const auto place = [&](const StateEntry& e) {
    return Tensor(there.tensor.ptr<float>() + (e.name == "fc.weight" ? 12 : 0), e.memory.spec());
  };
  p.table.place_gradients(place);
  EXPECT_EQ(p.table.parameters()[0].gradient->memory.data(), there.tensor.ptr<float>() + 12);
  EXPECT_EQ(p.gradient_of_matrix(), there.tensor.ptr<float>() + 12);
  EXPECT_LT(p.table.bytes(), own);
  p.table.forget_gradients();
  EXPECT_EQ(p.table.parameters()[0].gradient, nullptr);
  EXPECT_FALSE(p.matrix.gradient) << "the module must be updated";
  EXPECT_EQ(p.gradient_of_matrix(), nullptr);
  p.table.own_gradients();
  EXPECT_EQ(p.gradient_of_matrix(), p.table.parameters()[0].gradient->memory.data());
  EXPECT_EQ(p.table.bytes(), own);
  EXPECT_THROW(p.table.place_gradients([&](const StateEntry&) { return there.tensor; }), Error) << "another shape";
}

/// A rank that updates the second half of the matrix, and of the convolution nothing.
FlatLayout half() {
  return {.places = {{0, {4, 8}, 0}, {64, {12, 12}, 4}}, .elements = 128, .copied = 64, .share_elements = 64};
}

TEST(state_table, divided_values_lie_in_one_block_and_are_updated_in_pieces) {
  Parts p;
  p.open(true);
  const auto& matrix = p.table.parameters()[0];
  std::iota(matrix.memory.ptr<float>(), matrix.memory.ptr<float>() + 8, 0.0f);
  p.table.divide(half());
  p.table.keep_copies(DType::bf16);
  const std::string_view kept[] = {"m"};
  const auto moments = p.table.add_moments(kept);
  EXPECT_EQ(matrix.memory.data(), p.table.value_block().data());
  EXPECT_EQ(matrix.host.data(), matrix.memory.data());
  EXPECT_EQ(matrix.memory.ptr<float>()[5], 5) << "values move with the tensor";
  EXPECT_EQ(p.table.parameters()[1].memory.data(), p.table.value_block().ptr<float>() + 64);
  const auto& mine = p.table.updated()[0];
  EXPECT_EQ(mine.memory.data(), matrix.memory.ptr<float>() + 4);
  EXPECT_EQ(mine.memory.spec(), (Spec{{4}, DType::f32}));
  EXPECT_EQ(mine.part, Part::flat({4, 6}, {4, 8}, p.matrix.part));
  EXPECT_EQ(mine.gradient->memory.data(), matrix.gradient->memory.ptr<float>() + 4);
  EXPECT_EQ(mine.copy->memory.data(), matrix.copy->memory.ptr<bf16>() + 4);
  EXPECT_EQ(moments->entries[0].whole(), (Spec{{4, 6}, DType::f32}));
  EXPECT_EQ(moments->entries[0].memory.size(), 4);
  EXPECT_EQ(moments->entries[1].memory.size(), 0) << "other ranks update the convolution";
  OwnedTensor shares({{64}, DType::f32});
  p.table.place_gradients([](const StateEntry& e) { return Tensor(nullptr, e.memory.spec()); }, shares.tensor);
  EXPECT_EQ(p.table.updated()[0].gradient->memory.data(), shares.tensor.data());
  EXPECT_TRUE(p.table.updated()[0].gradient->counted);
  EXPECT_FALSE(p.table.parameters()[0].gradient->counted) << "it is there only while a pass runs";
  p.table.place_gradients([&](const StateEntry& e) { return Tensor(shares.tensor.data(), e.memory.spec()); });
  p.table.divide({});
  EXPECT_EQ(p.table.updated().data(), p.table.parameters().data());
  EXPECT_THROW(p.table.divide(FlatLayout{}), Error) << "places for no parameters";
}

/// Of the matrix, this rank keeps only what it updates.
TEST(state_table, values_that_are_not_kept_whole_are_pieces_in_files) {
  Parts p;
  p.open(true);
  std::iota(p.table.parameters()[0].memory.ptr<float>(), p.table.parameters()[0].memory.ptr<float>() + 8, 0.0f);
  auto layout = half();
  layout.places[0].whole = false, layout.divided = 64, layout.share_divided = 32;
  const auto before = p.table.bytes();
  p.table.divide(layout);
  EXPECT_LT(p.table.bytes(), before + 256) << "padding to 64 elements";
  p.table.keep_copies(DType::bf16);
  Pool pool(1);
  Stream s(pool);
  p.table.round_copies(s);
  const auto& matrix = p.table.parameters()[0];
  EXPECT_EQ(matrix.memory.data(), nullptr);
  EXPECT_EQ(p.table.value_block().size(), 64);
  const auto& mine = p.table.updated()[0];
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(mine.memory.ptr<float>()[i], static_cast<float>(4 + i));
    EXPECT_EQ(static_cast<float>(matrix.copy->memory.ptr<bf16>()[4 + i]), static_cast<float>(4 + i));
  }
  const auto files = p.table.model_files();
  EXPECT_EQ(files[0].name, "fc.weight");
  EXPECT_EQ(files[0].part, mine.part);
  EXPECT_EQ(files[0].tensor.data(), mine.memory.data());
  OwnedTensor whole(matrix.memory.spec());
  p.table.lend_whole_values([&](const StateEntry&) { return whole.tensor; });
  EXPECT_EQ(matrix.host.data(), whole.tensor.data());
  EXPECT_TRUE(p.table.parameters()[1].host.data() != whole.tensor.data()) << "the convolution is whole anyway";
  p.table.lend_whole_values([](const StateEntry&) { return Tensor(); });
  EXPECT_THROW(p.table.divide({}), Error) << "its other elements are not here";
}

/// Of frozen tensors of any types, this rank keeps some bytes.
TEST(state_table, frozen_tensors_are_divided_by_bytes) {
  Parts p;
  p.matrix.role = nn::Role::frozen;
  const OwnedTensor value({p.matrix.spec.shape, DType::bf16}), packed({{8}, DType::u8});
  std::memset(value.tensor.data(), 1, 16), std::memset(packed.tensor.data(), 2, 8);
  p.table.add_value(p.matrix, value.tensor);
  p.table.add_frozen(p.conv, ".packed", packed.tensor);
  ASSERT_TRUE(p.matrix.constant());
  p.table.divide_frozen(std::array{FlatLayout::Place{0, {4, 10}, 0}, FlatLayout::Place{64, {8, 8}, 6}}, 32);
  EXPECT_EQ(p.table.frozen_shares().spec(), (Spec{{32}, DType::u8}));
  const auto* bytes = p.table.frozen_shares().ptr<unsigned char>();
  for (int i = 0; i < 32; ++i) EXPECT_EQ(bytes[i], i < 6 ? 1 : 0) << i;
  EXPECT_EQ(p.table.frozen()[0].memory.spec(), value.tensor.spec());
  EXPECT_FALSE(p.table.frozen()[0].memory);
  EXPECT_FALSE(p.matrix.constant()) << "passes write it";
  std::int64_t counted = 0;
  p.table.for_each([&](const StateEntry& e) { counted += e.counted ? e.memory.bytes() : 0; });
  EXPECT_EQ(counted, 6);
  EXPECT_THROW(p.table.divide_frozen(std::array{FlatLayout::Place{}, FlatLayout::Place{}}, 32), Error)
      << "the other bytes are not here";
  EXPECT_THROW(p.table.divide_frozen({}, 32), Error) << "places for no tensors";
}

TEST(state_table, tensors_of_the_caller_are_found_by_name) {
  Parts p;
  OwnedTensor value(p.matrix.spec), packed({{8}, DType::u8});
  p.table.add_value(p.matrix, value.tensor);
  p.table.add_frozen(p.conv, ".packed", packed.tensor);
  EXPECT_EQ(p.table.parameters().size(), 1u) << "a quantised parameter has no value";
  EXPECT_EQ(p.matrix.value, p.matrix.spec);
  Graph g;
  p.table.bind(g);
  p.matrix(g), g.constant("conv.weight.packed", Tensor(nullptr, packed.tensor.spec()));
  const auto bindings = g.finish().bindings;
  EXPECT_EQ(bindings.memory("fc.weight").data(), value.tensor.data());
  EXPECT_EQ(bindings.memory("conv.weight.packed").data(), packed.tensor.data());
}

TEST(state_table, files_hold_channels_first) {
  Parts p;
  p.open(false);
  const auto& conv = p.table.parameters()[1];
  std::iota(conv.memory.ptr<float>(), conv.memory.ptr<float>() + 12, 0.0f);
  Pool pool(1);
  p.table.fetch(Stream(pool));
  EXPECT_EQ(conv.host.shape(), (Shape{2, 2, 1, 3}));
  const auto* files = conv.host.ptr<float>();
  EXPECT_EQ(std::vector<float>(files, files + 12), (std::vector<float>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
  conv.host.ptr<float>()[3] = -1;
  p.table.store(Stream(pool));
  EXPECT_EQ(conv.memory.ptr<float>()[1], -1);
  std::string names;
  for (const auto& t : p.table.model_files()) names += t.name + (t.part.all() ? " " : "* ");
  EXPECT_EQ(names, "fc.weight* conv.weight norm.mean norm.passes ");
  p.table.count_pass(), p.table.count_pass();
  EXPECT_EQ(*p.table.buffers()[1].memory.ptr<std::int64_t>(), 2);
}

TEST(state_table, a_described_model_has_specs_and_no_memory) {
  Parts p, real;
  p.table.describe();
  p.open(true), real.open(true);
  for (auto* t : {&p.table, &real.table}) t->keep_copies(DType::f16);
  const std::string_view kept[] = {"momentum"};
  const auto moments = p.table.add_moments(kept), others = real.table.add_moments(kept);
  EXPECT_EQ(p.table.bytes(), real.table.bytes());
  EXPECT_EQ(p.names(), real.names());
  p.table.for_each([](const StateEntry& e) { EXPECT_TRUE(e.memory.spec() && !e.memory) << e.name; });
  real.table.for_each([](const StateEntry& e) { EXPECT_TRUE(e.memory) << e.name; });
  EXPECT_EQ(stored(moments->entries).size(), 2u) << "the memory plan must count what files would hold";
}

TEST(state_table, keeps_what_a_rank_has_of_a_model) {
  Parts p;
  p.open(true);
  std::iota(p.table.parameters()[0].memory.ptr<float>(), p.table.parameters()[0].memory.ptr<float>() + 8, 1.0f);
  p.table.keep([&](const nn::Param& param) { return &param == &p.matrix; });
  auto names = p.names();
  EXPECT_EQ(names[StateRole::value], "fc.weight ");
  EXPECT_EQ(names[StateRole::gradient], "fc.weight.grad ");
  EXPECT_EQ(names[StateRole::buffer], "");
  EXPECT_EQ(names[StateRole::counter], "norm.passes ") << "all ranks count";
  const auto& matrix = p.table.parameters()[0];
  for (int i = 0; i < 8; ++i) EXPECT_EQ(matrix.memory.ptr<float>()[i], static_cast<float>(i + 1));
  EXPECT_EQ(matrix.host.data(), matrix.memory.data());
  EXPECT_EQ(matrix.gradient->memory.spec(), matrix.memory.spec());
  EXPECT_EQ(p.table.parameter_count(), 24 + 12) << "of the whole model";
  ASSERT_EQ(p.table.missing().size(), 2u);
  EXPECT_FALSE(p.table.missing()[0].memory);
  EXPECT_EQ(p.conv.value, p.conv.spec) << "programs of the whole model can still be recorded";

  std::vector<float> conv(12, 7.0f), mean(3, 8.0f);
  p.table.with_missing(
      [&](const StateEntry& e) { return Tensor((e.param == &p.conv ? conv : mean).data(), e.host.spec()); },
      [&] {
        ASSERT_EQ(p.table.parameters().size(), 2u);
        EXPECT_EQ(p.table.parameters()[1].name, "conv.weight") << "the order of the model";
        EXPECT_EQ(p.table.parameters()[1].host.data(), conv.data());
        EXPECT_EQ(stored(p.table.buffers()).size(), 2u);
      });
  EXPECT_EQ(p.table.parameters().size(), 1u);
  EXPECT_EQ(p.table.buffers().size(), 1u);
}

}  // namespace
}  // namespace hpcdl
