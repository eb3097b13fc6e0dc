#include "hpcdl/machine/speed_of_light.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "hpcdl/graph.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/ops/batch_norm/batch_norm.h"
#include "hpcdl/ops/embedding/embedding.h"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"
#include "hpcdl/ops/fp8_layer/fp8_layer.h"
#include "hpcdl/ops/fp8_quantize/fp8_quantize.h"
#include "hpcdl/ops/int4_embedding/int4_embedding.h"
#include "hpcdl/ops/kv_write/kv_write.h"
#include "hpcdl/ops/linear/linear.h"
#include "hpcdl/ops/norm_qkv/norm_qkv.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"
#include "hpcdl/ops/quant_embedding/quant_embedding.h"
#include "hpcdl/ops/rope/rope.h"
#include "hpcdl/ops/softmax/softmax.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/train/step_programs.h"
#include "tools/cases.h"

namespace hpcdl::lab {
namespace {

Roofs machine() {
  Roofs r{.f32 = 500e9,
          .bf16 = 1000e9,
          .i8 = 2000e9,
          .memory_read = 40e9,
          .memory_copy = 60e9,
          .cache_read = 200e9,
          .cache_bytes = 32e6,
          .caches = {}};
  r.memory_write = 80e9, r.memory_update = 70e9;
  r.caches = {{"L1", 0.1e6, 800e9, 850e9, 900e9}, {"L2", 2e6, 400e9, 300e9}, {"L3", 32e6, 200e9, 180e9}};
  return r;
}

Cost reading(double bytes) { return {.reads = bytes}; }
Cost copying(double bytes) { return {.reads = bytes / 2, .writes = bytes / 2}; }

TEST(light, bytes_come_from_the_nearest_level_that_can_hold_them) {
  const auto r = machine();
  std::string level;
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(0.08e6), r, &level), 0.08e6 / 800e9);
  EXPECT_EQ(level, "L1");
  const double l1 = 0.1e6 / 800e9, l2 = l1 + 1.9e6 / 400e9, l3 = l2 + 30e6 / 200e9;
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(1.1e6), r, &level), l1 + 1e6 / 400e9);
  EXPECT_EQ(level, "L2");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(32e6), r, &level), l3);
  EXPECT_EQ(level, "L3");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(42e6), r, &level), l3 + 10e6 / 40e9);
  EXPECT_EQ(level, "memory");
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(128e6), r, &level), 128e6 / 40e9)
      << "nothing of such a long pass stays in the cache";
}

TEST(light, the_mix_of_reads_and_writes_counts) {
  const auto r = machine();
  EXPECT_DOUBLE_EQ(traffic_seconds(copying(1e9), r), 1e9 / 60e9);
  EXPECT_DOUBLE_EQ(memory_rate({.writes = 1}, r), 80e9);
  EXPECT_DOUBLE_EQ(1 / memory_rate({.reads = 3, .writes = 1}, r), (1 / 40e9 + 1 / 60e9) / 2);
  EXPECT_DOUBLE_EQ(1 / memory_rate({.reads = 1, .writes = 3}, r), (1 / 60e9 + 1 / 80e9) / 2);
  EXPECT_DOUBLE_EQ(memory_rate({.updates = 1}, r), 70e9);
  EXPECT_DOUBLE_EQ(1 / memory_rate({.reads = 2, .updates = 1}, r), 0.5 / 70e9 + 0.5 / 40e9) << "half is updated";
  auto unknown = r;
  unknown.memory_write = unknown.memory_update = 0;
  EXPECT_DOUBLE_EQ(memory_rate({.writes = 1}, unknown), 60e9) << "as half and half";
  EXPECT_DOUBLE_EQ(memory_rate({.updates = 1}, unknown), 60e9);
}

TEST(light, what_is_updated_in_place_needs_room_once) {
  const auto r = machine();
  std::string level;
  EXPECT_DOUBLE_EQ(traffic_seconds({.updates = 0.08e6}, r, &level), 0.16e6 / 900e9);
  EXPECT_EQ(level, "L1");
}

TEST(light, an_outer_level_never_seems_faster_than_an_inner_one) {
  auto r = machine();
  r.caches[0].read = 100e9, r.caches[0].copy = 90e9;  // a disturbed measurement
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(0.08e6), r), 0.08e6 / 400e9);
}

TEST(light, without_cache_levels_the_last_one_stands_for_all) {
  auto r = machine();
  r.caches.clear();
  EXPECT_DOUBLE_EQ(traffic_seconds(reading(1e6), r), 1e6 / 200e9);
}

TEST(light, takes_the_longest_of_arithmetic_and_traffic) {
  const auto r = machine();
  const auto product = light({.operations = 1e12, .unit = Unit::bf16, .reads = 1e9}, r);
  EXPECT_EQ(product.bound, "bf16");
  EXPECT_DOUBLE_EQ(product.seconds, 1);
  EXPECT_DOUBLE_EQ(light({.operations = 1e12, .unit = Unit::i8, .reads = 1e9}, r).seconds, 0.5);
  EXPECT_DOUBLE_EQ(light({.operations = 1e12, .unit = Unit::f32}, r).seconds, 2);
  const auto traffic = light({.operations = 1e9, .unit = Unit::f32, .reads = 12e9}, r);
  EXPECT_EQ(traffic.bound, "memory");
  EXPECT_DOUBLE_EQ(traffic.seconds, 12e9 / 40e9);
  const LightTime both[] = {product, traffic};
  EXPECT_DOUBLE_EQ(sum(both).seconds, product.seconds + traffic.seconds);
  EXPECT_EQ(sum(both).bound, "bf16");
}

TEST(light, tf32_has_its_own_roof_where_it_was_measured) {
  auto r = machine();
  EXPECT_DOUBLE_EQ(peak(Unit::tf32, r), 1000e9) << "no faster than bf16";
  r.tf32 = 700e9;
  EXPECT_DOUBLE_EQ(peak(Unit::tf32, r), 700e9);
}

TEST(light, no_record_takes_less_than_an_empty_one) {
  auto r = machine();
  r.launch = 2e-6;
  const auto small = light({.operations = 10, .unit = Unit::f32, .reads = 40, .writes = 40}, r);
  EXPECT_DOUBLE_EQ(small.seconds, 2e-6);
  EXPECT_EQ(small.bound, "launch");
  const auto large = light(reading(12e9), r);
  EXPECT_DOUBLE_EQ(large.seconds, 12e9 / 40e9);
  EXPECT_EQ(large.bound, "memory");
}

TEST(light, an_exchange_takes_the_latency_and_its_bytes) {
  auto r = machine();
  r.networks = {{"cpu", 2, 1, 10e9, 5e-6}, {"cpu", 4, 1, 4e9, 8e-6}};
  const Exchange two{ExchangeKind::all_reduce, "dp of 2", 2, 1'000'000};   // sends 1 MB
  const Exchange four{ExchangeKind::all_gather, "tp of 4", 4, 4'000'000};  // sends 3 MB
  const auto l = light({.updates = 1e6, .wire = 1e6}, r, std::span(&two, 1));
  EXPECT_DOUBLE_EQ(l.seconds, 5e-6 + 1e6 / 10e9);
  EXPECT_EQ(l.bound, "network");
  EXPECT_TRUE(l.network_known);
  const Exchange both[] = {two, four};
  EXPECT_DOUBLE_EQ(light({}, r, both).network, 5e-6 + 1e6 / 10e9 + 8e-6 + 3e6 / 4e9);
  EXPECT_EQ(light(reading(12e9), r, both).bound, "memory");
}

TEST(light, a_network_that_was_not_measured_is_said) {
  auto r = machine();
  r.networks = {{"cpu", 2, 1, 10e9, 5e-6}};
  const Exchange three{ExchangeKind::all_reduce, "dp of 3", 3, 1'000'000},
      none{ExchangeKind::all_reduce, "dp of 1", 1, 8};
  EXPECT_FALSE(light({.updates = 1e6}, r, std::span(&three, 1)).network_known);
  EXPECT_TRUE(light({.updates = 1e6}, r, std::span(&none, 1)).network_known) << "one rank exchanges nothing";
  const LightTime parts[] = {light(reading(1), r), light({}, r, std::span(&three, 1))};
  EXPECT_FALSE(sum(parts).network_known);
}

/// A training step of 2 x 2 ranks without processes: the network is a lower bound for every exchange, and those of each
/// lane are a lower bound for the step.
TEST(light, of_a_step_under_dp_and_tp_counts_each_exchange_where_it_is_waited_for) {
  const auto mesh = parallel::Mesh::described({.dp = 2, .tp = 2}, 1);
  auto model = models::LanguageModel::create(models::tiny(io::Family::gpt2), {}, true,
                                             std::make_shared<parallel::TensorParallel>(mesh.tp()));
  Pool pool(1);
  Stream s(pool);
  for (const bool overlap : {true, false}) {
    train::StepOptions options{.batch = 2, .length = 16, .data = mesh.dp()};
    options.reduce.overlap = overlap;
    const train::StepPrograms programs(model, options, s);
    const auto planned = programs.first()->planned;
    const auto& p = planned->program;
    auto r = machine();
    r.networks = {{"cpu", 2, 1, 1e6, 1e-3}};
    double beside = 0, waited = 0;
    for (const auto& record : p.records) {
      const auto l = light(p, record, r), blind = light(p, record, machine());
      double wire = 0, least = 0;
      for (const auto& e : exchanges(p, record)) wire += e.wire_bytes(), least += 1e-3 + e.wire_bytes() / 1e6;
      EXPECT_DOUBLE_EQ(record.cost.wire, wire) << record.op.view();
      EXPECT_DOUBLE_EQ(l.network, least) << record.op.view();
      EXPECT_EQ(blind.network_known, wire == 0) << record.op.view();
      EXPECT_GT(record.cost.bytes(), 0) << record.op.view();
      (record.lane == Lane::reduce ? beside : waited) += least;
    }
    EXPECT_GT(waited, 0);
    EXPECT_EQ(beside > 0, overlap);
    EXPECT_GE(light(p, r).seconds, std::max(waited, beside));
    EXPECT_FALSE(light(p, machine()).network_known);
  }
}

/// The cost according to the accesses of a record's operands.
Cost counted(const Program& p, const Record& r) {
  Cost c;
  for (std::uint32_t i = r.operands; i < r.operands + r.operand_count; ++i) {
    const auto& o = p.operands[i];
    if (o.slot < 0 || p.slots[static_cast<std::size_t>(o.slot)].role == SlotRole::scratch) continue;
    (o.access == Access::read    ? c.reads
     : o.access == Access::write ? c.writes
                                 : c.updates) += static_cast<double>(o.spec.bytes());
  }
  return c;
}

TEST(cost, of_every_op_is_the_bytes_of_its_operands_in_the_unit_of_its_products) {
  // Ops that the next test covers.
  const std::set<std::string_view> other_bytes{
      "softmax",        "rope",     "embedding",    "int4_embedding",  "kv_write",   "batch_norm",
      "add_batch_norm", "norm_qkv", "fp8_quantize", "paged_attention", "expert_mlp", "quant_embedding",
      "fp8_cast",       "fp8_layer"};
  const std::set<std::string_view> products{"adapter_rows",
                                            "linear",
                                            "linear_act",
                                            "mlp",
                                            "matmul",
                                            "block_linear",
                                            "conv2d",
                                            "attention",
                                            "lm_head_loss",
                                            "norm_qkv",
                                            "norm_swiglu",
                                            "paged_attention",
                                            "packed_attention",
                                            "expert_mlp",
                                            "quant_linear",
                                            "chunk_attention",
                                            "document_attention"};
  std::set<std::string_view> seen;
  for (const auto& c : cases()) {
    Graph g({.inference = !c.backward});
    c.record(g);
    const auto& p = g.program();
    for (const auto& r : p.records) {
      const auto op = r.op.view();
      const auto where = fmt::format("{}, {} {}", case_label(c), op, r.backward ? "backward" : "forward");
      seen.insert(op);
      if (!other_bytes.contains(op)) {
        const Cost want = counted(p, r);
        EXPECT_EQ(r.cost.reads, want.reads) << where;
        EXPECT_EQ(r.cost.writes, want.writes) << where;
        EXPECT_EQ(r.cost.updates, want.updates) << where;
      }
      EXPECT_EQ(r.cost.wire, 0) << where;
      const bool multiplies = products.contains(op) || (op == "lm_head_gradient" && !r.backward);
      const bool int4 = c.op.ends_with("+int4");
      const Unit want = multiplies                                ? int4 ? Unit::i8 : unit_of(c.dtype)
                                                       : r.cost.operations == 0 ? Unit::none
                        : op == "fp8_linear" || op == "fp8_layer" ? Unit::i8
                        : op == "int4_linear" ? c.op.find("exact") == std::string::npos ? Unit::i8 : unit_of(c.dtype)
                                              : Unit::f32;
      EXPECT_EQ(r.cost.unit, want) << where;
    }
  }
  for (const auto op : other_bytes) EXPECT_TRUE(seen.contains(op)) << op;
  for (const auto op : products) EXPECT_TRUE(seen.contains(op)) << op;
}

/// The minimum work of ops that do not access all of their operands exactly once, counted by hand.
TEST(cost, of_what_leaves_operands_out_or_reads_them_twice) {
  Graph g({.inference = true});
  const auto last = [&] { return g.program().records.back().cost; };
  const auto input = [&](const char* name, Shape s, DType d) { return g.input(name, {s, d}); };
  softmax(input("scores", {3, 4, 6}, DType::bf16), {.causal = true});  // rows see 3, 4, 5 and 6 of 6 columns
  EXPECT_EQ(last().reads, 3 * 18 * 2);
  EXPECT_EQ(last().writes, 3 * 24 * 2);
  fp8_quantize(input("wide", {6, 8}, DType::bf16));
  EXPECT_EQ(last().reads, 2 * 6 * 8 * 2) << "measured, then rounded";
  EXPECT_EQ(last().writes, 6 * 8 + 4);
  fp8_quantize(input("wide2", {6, 8}, DType::bf16), {.scaling = Fp8Scaling::row});
  EXPECT_EQ(last().reads, 6 * 8 * 2);
  const Var x8 = input("x8", {32, 48}, DType::bf16), w8 = input("w8", {16, 48}, DType::f32);
  const auto qw = fp8_operand(g, w8, {}, Var());
  EXPECT_EQ(last().reads, 2 * 16 * 48 * 4) << "measured, then rounded";
  EXPECT_EQ(last().writes, 2 * 16 * 48 + 4 + 4);
  const auto qx = fp8_operand(g, x8, {}, input("history", {1 + kAmaxSteps, 3}, DType::f32));
  EXPECT_EQ(last().reads, 32 * 48 * 2 + (1 + kAmaxSteps) * 3 * 4);
  fp8_layer(x8, w8, {}, {}, qx, qw, {}, {});
  EXPECT_EQ(last().reads, 32 * 48 + 16 * 48 + 4 + 4) << "not what is there for the gradient alone";
  EXPECT_EQ(last().writes, 32 * 16 * 2);
  std::vector<ExpertMatrices<Var>> mlps;
  for (int e = 0; e < 4; ++e) {
    const auto matrix = [&](const char* name, Shape shape) {
      Matrix<Var> m;
      m.w = input(fmt::format("{}.{}", name, e).c_str(), shape, DType::bf16);
      return m;
    };
    mlps.push_back({matrix("gate", {16, 8}), matrix("up", {16, 8}), matrix("down", {8, 16})});
  }
  expert_mlp(input("base", {1, 8}, DType::bf16), input("token", {1, 8}, DType::bf16),
             input("share", {1, 1}, DType::f32), input("choice", {1, 1}, DType::i32),
             std::span<const ExpertMatrices<Var>>(mlps), {});
  EXPECT_EQ(last().reads, 8 * 2 + 8 * 2 + 4 + 4 + 3 * 16 * 8 * 2) << "a row goes through one of four experts";
  EXPECT_EQ(last().writes, 8 * 2);
  rope(input("x", {2, 5, 8}, DType::bf16), input("angles", {12, 4}, DType::f32), {.head_dim = 4});
  EXPECT_EQ(last().reads, 2 * 5 * 8 * 2 + 5 * 4 * 4) << "x and 5 rows of the table";
  EXPECT_EQ(last().writes, 2 * 5 * 8 * 2);
  const Var ids = input("ids", {2, 3}, DType::i32), table = input("table", {100, 16}, DType::f32),
            positions = input("positions", {7, 16}, DType::bf16);
  embedding(table, ids);
  EXPECT_EQ(last().reads, 6 * 4 + 6 * 16 * 4) << "ids and one row of the table for each";
  EXPECT_EQ(last().operations, 0);
  embedding(table, ids, positions);
  EXPECT_EQ(last().reads, 6 * 4 + 6 * 16 * 4 + 3 * 16 * 2) << "and 3 positions";
  EXPECT_EQ(last().writes, 6 * 16 * 4);
  const Var packed = input("packed", {100, 32}, DType::u8), scale = input("scale", {100, 2}, DType::bf16);
  int4_embedding(ids, packed, scale, Var());
  EXPECT_DOUBLE_EQ(last().reads, 6 * 4 + 6 * (32 + 2 * 2)) << "ids, half a byte per number and its share of a scale";
  EXPECT_EQ(last().writes, 6 * 64 * 4);
  quant_embedding(ids, QuantParts<Var>{input("codes", {100, 68}, DType::u8), {}, {}, {}}, Var(), Var(),
                  {.format = QuantFormat::q8_0});
  EXPECT_DOUBLE_EQ(last().reads, 6 * 4 + 6 * 68) << "ids and rows of blocks";
  EXPECT_EQ(last().writes, 6 * 64 * 4);
  const Var k = input("k", {2, 3, 16}, DType::f32), pool = input("pool", {5, 2, 64, 8}, DType::bf16);
  kv_write(pool, pool, k, k, input("slots", {6}, DType::i64));
  EXPECT_EQ(last().reads, 2 * (2 * 3 * 16 * 4) + 6 * 8);
  EXPECT_EQ(last().writes, 2 * (2 * 3 * 16 * 2)) << "the rows of the new tokens";
  EXPECT_EQ(last().updates, 0);
  const Var row = input("row", {1, 1, 4}, DType::f32), wide = input("wide", {8, 4}, DType::f32),
            narrow = input("narrow", {4, 4}, DType::f32), pools = input("pools", {3, 1, 64, 4}, DType::bf16);
  const Matrix<Var> m[] = {{wide, {}, {}, {}}, {narrow, {}, {}, {}}, {narrow, {}, {}, {}}};
  norm_qkv(row, input("gamma", {4}, DType::f32), input("table", {9, 4}, DType::f32),
           {input("positions", {1}, DType::i32), input("slots", {1}, DType::i64)}, m, pools, pools, {.head_dim = 4});
  EXPECT_EQ(last().reads, (4 + 4 + 9 * 4 + 8 * 4 + 2 * 4 * 4) * 4 + 4 + 8) << "x, gamma, table, places and matrices";
  EXPECT_EQ(last().writes, 8 * 4 + 3 * 4 * 4 + 2 * 4 * 2) << "q, three intermediate rows, and one row of each pool";
  EXPECT_EQ(last().updates, 0);
  const Var query = input("query", {1, 2, 4 * 8}, DType::bf16), lengths = input("lengths", {2}, DType::i32);
  paged_attention(query, pool, pool, input("starts", {3}, DType::i32), lengths, input("pages", {2, 2}, DType::i32),
                  {.heads = 4});
  EXPECT_EQ(last().reads, 2 * 4 * 8 * 2 + 2 * (4 * 2 * 64 * 8 * 2) + (3 + 2 + 4) * 4) << "q, four pages, and where";
  EXPECT_EQ(last().operations, 4.0 * 2 * 4 * 8 * 128);
  const Var x = input("image", {4, 2, 2, 8}, DType::bf16), weight = input("weight", {8}, DType::f32);
  batch_norm(x, weight, weight, Var(), Var());
  EXPECT_EQ(last().reads, 2 * (4 * 4 * 8 * 2) + 2 * 8 * 4) << "x is read twice";
  EXPECT_EQ(last().writes, 4 * 4 * 8 * 2 + 3 * 8 * 4);
}

TEST(cost, of_gradients_is_that_of_the_gradients_that_are_wanted) {
  Graph g;
  const Spec w{{4, 6}, DType::f32};
  const Var x = g.input("x", {{3, 6}, DType::f32});
  const auto parameter = [&](const char* name) {
    return g.parameter(name, Tensor(nullptr, w, Device::cpu()), Tensor(nullptr, w, Device::cpu()));
  };
  const Var y = linear(x, parameter("w"));
  g.backward(y, g.input("dy", y.spec()));
  const auto& r = g.program().records.back();
  ASSERT_TRUE(r.backward);
  EXPECT_EQ(r.cost.operations, 2 * 3 * 4 * 6) << "x has no gradient";
  EXPECT_EQ(r.cost.reads, (3 * 6 + 4 * 6 + 3 * 4) * 4);
  EXPECT_EQ(r.cost.writes, 4 * 6 * 4);
}

TEST(cost, of_products_of_f32_may_be_in_tf32) {
  Graph g({.inference = true, .numerics = {.products = F32Products::tf32}});
  for (const auto d : {DType::f32, DType::bf16}) {
    const Var x = g.input("x", {{3, 6}, d});
    linear(x, g.input("w", {{4, 6}, d}));
    EXPECT_EQ(g.program().records.back().cost.unit, d == DType::f32 ? Unit::tf32 : Unit::bf16);
    softmax(x);
    EXPECT_EQ(g.program().records.back().cost.unit, Unit::f32) << "there is no product";
  }
}

}  // namespace
}  // namespace hpcdl::lab
