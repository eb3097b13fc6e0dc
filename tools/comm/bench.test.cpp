// The benchmark of collectives on ranks that are threads: right results, whole tables, pictures that parse.

#include "tools/comm/bench.h"

#include <gtest/gtest.h>

#include "hpcdl/testing/ranks.h"
#include "tools/comm/operands.h"

namespace hpcdl::lab {
namespace {

using comm::Collective;

TEST(bench_comm, every_collective_is_right_and_timed) {
  for (const int n : {2, 3})
    testing::run_ranks(n, [](comm::Group g) {
      Pool pool(1);
      const Stream s(pool);
      for (const Collective what :
           {Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::all_to_all})
        for (const DType d : {DType::f32, DType::bf16, DType::i32}) {
          const CommCase c{what, 5000, d};
          const auto sides = comm_sides(g, s, c, false);
          const auto results =
              bench_collective(g, s, c, sides, {.seconds = 0.001, .target = 1e-5, .rounds = 3, .check = true});
          ASSERT_EQ(results.size(), sides.size());
          for (const auto& r : results) {
            EXPECT_LE(*r.max_error, d == DType::bf16 ? 0x1p-7 : 1e-6)
                << comm::collective_name(what) << " " << r.side.name();
            EXPECT_GT(r.seconds.median, 0);
            EXPECT_EQ(r.rounds, 3);
            EXPECT_FALSE(r.ratio) << "no native library is present";
            const bool silent = r.side.algorithm == comm::Algorithm::shared;
            EXPECT_EQ(r.wire_bytes == 0, silent) << r.side.name();
          }
        }
    });
}

TEST(bench_comm, a_wrong_result_is_seen) {
  testing::run_ranks(2, [](comm::Group g) {
    Pool pool(1);
    const Stream s(pool);
    const CommSide side{comm::Algorithm::ring, Memory::own};
    const CommCase c{Collective::all_reduce, 400, DType::f32};
    CommOperands operands(g, s, c, {side});
    operands.fill(g, side);
    EXPECT_GT(operands.error(g, side), 0.1) << "nothing has been summed yet";
    operands.call(g.blocking(), s, side);
    EXPECT_LT(operands.error(g, side), 1e-6);
  });
}

TEST(bench_comm, the_picture_of_one_size_shows_a_mark_and_what_it_means) {
  CommRow row{{Collective::all_reduce, 1024, DType::f32}, {}};
  CommResult r;
  r.side = {comm::Algorithm::ring, Memory::own};
  r.seconds = compare::spread({1e-4});  // 0.01024 GB/s
  row.results.push_back(r);
  const auto svg = comm_picture({row}, "all_reduce", 2);
  EXPECT_NE(svg.find("<circle"), std::string::npos) << svg;
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos) << svg;
  EXPECT_NE(svg.find(">0.01<"), std::string::npos) << svg;
  r.seconds = row.results[0].seconds = compare::spread({3e-2});
  EXPECT_NE(comm_picture({row}, "all_reduce", 2).find(">0.00005<"), std::string::npos);
}

TEST(bench_comm, a_sweep_tells_the_latency_and_the_bandwidth) {
  std::vector<CommRow> rows;
  const auto add = [&](Collective what, std::int64_t bytes, double seconds) {
    CommRow row{{what, bytes, DType::f32}, {}};
    for (const double slower : {1.5, 1.0}) {
      CommResult r;
      r.seconds = compare::spread({seconds * slower});
      row.results.push_back(r);
    }
    rows.push_back(row);
  };
  for (const std::int64_t bytes : {4, 1024, 1 << 20, 1 << 28})
    add(Collective::all_reduce, bytes, 2e-6 + static_cast<double>(bytes) * 1e-10);
  const auto n = network_roof(rows, 4, 1, "cpu");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->ranks, 4);
  EXPECT_NEAR(n->latency, 2e-6, 1e-8);
  EXPECT_NEAR(n->bandwidth, 1.5e10, 1e8) << "each rank sends 1.5 bytes per byte of the tensor";
  rows.resize(2);
  EXPECT_FALSE(network_roof(rows, 4, 1, "cpu")) << "small sizes alone do not determine a bandwidth";
  rows.clear();
  add(Collective::all_to_all, 1 << 28, 1);
  EXPECT_FALSE(network_roof(rows, 4, 1, "cpu")) << "no record uses this collective";
}

TEST(bench_comm, table_and_picture_show_all_sizes) {
  std::vector<CommRow> rows;
  for (const std::int64_t bytes : {4, 1024, 1 << 20, 1 << 28}) {
    CommRow row{{Collective::all_reduce, bytes, DType::f32}, {}};
    for (const auto a : {comm::Algorithm::ring, comm::Algorithm::native}) {
      CommResult r;
      r.side = {a, Memory::own};
      r.seconds = compare::spread({1e-6 + static_cast<double>(bytes) * 1e-10});
      if (bytes > 4) r.ratio = compare::spread({1.5});
      row.results.push_back(r);
    }
    rows.push_back(row);
  }
  const auto table = comm_table(rows, 2);
  EXPECT_NE(table.find("1 MiB"), std::string::npos);
  EXPECT_NE(table.find("x1.50"), std::string::npos);
  EXPECT_NE(table.find("26.84 ms"), std::string::npos) << table;
  EXPECT_EQ(table.find("e+"), std::string::npos) << table;
  const auto svg = comm_picture(rows, "all_reduce", 2);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("native"), std::string::npos);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(bench_comm, dtypes_go_by_both_names) {
  EXPECT_EQ(comm_dtype("fp32"), DType::f32);
  EXPECT_EQ(comm_dtype("f32"), DType::f32);
  EXPECT_EQ(comm_dtype("bf16"), DType::bf16);
  EXPECT_EQ(comm_dtype("uint8"), DType::u8);
  EXPECT_EQ(comm_dtype("float"), DType::none);
}

}  // namespace
}  // namespace hpcdl::lab
