#pragma once
// A roofline with known numbers.

#include "tools/roofline/report.h"

namespace hpcdl::lab::roofline {

inline Roofs roofs_for_tests() {
  Roofs r{.f32 = 500e9,
          .bf16 = 1000e9,
          .i8 = 2000e9,
          .memory_read = 40e9,
          .memory_copy = 60e9,
          .cache_read = 200e9,
          .cache_bytes = 32 << 20,
          .caches = {}};
  r.memory_write = 80e9, r.memory_update = 70e9;
  r.caches = {{"L1", 96 << 10, 900e9, 800e9, 950e9}, {"L2", 2 << 20, 400e9, 300e9}, {"L3", 32 << 20, 200e9, 180e9}};
  return r;
}

/// The seed and all cases of `ops`, each at the same made-up share of its roof.
inline Report report_for_tests(const std::vector<std::string>& ops, double share) {
  Report report;
  report.machine.cpu = "Test & <Co>";
  report.machine.isa = "avx512";
  report.threads = 2;
  report.date = "2026-01-01";
  report.roofs = roofs_for_tests();
  for (const auto& c : seed_cases()) report.rows.push_back(row_of(c, "seed", report.roofs));
  for (const auto& c : find_cases(ops)) report.rows.push_back(row_of(c, "case", report.roofs));
  for (auto& r : report.rows) r.seconds = r.fastest = r.slowest = r.light.seconds / share, r.runs = 3;
  return report;
}

}  // namespace hpcdl::lab::roofline
