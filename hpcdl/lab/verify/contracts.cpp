#include "hpcdl/core/error.h"
#include "hpcdl/io/nearest.h"
#include "hpcdl/lab/verify/contract.h"

namespace hpcdl::lab::verify {

std::string_view pattern_name(Pattern p) {
  constexpr std::string_view names[] = {"normal",           "positive",     "huge",     "tiny",
                                        "denormal",         "large offset", "constant", "zero",
                                        "mixed magnitudes", "one NaN",      "one +inf", "one -inf"};
  return names[static_cast<int>(p)];
}

namespace detail {

double traffic(const Problem& p) {
  double bytes = 0;
  for (const auto& i : p.in) bytes += static_cast<double>(i.spec.bytes());
  for (const auto& o : p.out) bytes += static_cast<double>(o.bytes());
  return bytes;
}

std::vector<Dims> row_shapes() {
  return {{4, 64}, {1, 1},   {1, 2},   {2, 3},   {3, 7},    {5, 8},    {7, 13},   {2, 15},
          {2, 16}, {3, 17},  {2, 31},  {4, 33},  {3, 63},   {2, 65},   {1, 127},  {2, 129},
          {0, 64}, {131, 5}, {1, 257}, {33, 96}, {1, 1023}, {2, 1025}, {3, 4099}, {37, 768}};
}

}  // namespace detail

const std::vector<Contract>& contracts() {
  static const auto all = [] {
    std::vector<Contract> list;
    detail::add_elementwise(list);
    detail::add_rows(list);
    detail::add_norms(list);
    detail::add_matrices(list);
    detail::add_attention(list);
    detail::add_others(list);
    detail::add_training(list);
    return list;
  }();
  return all;
}

const Contract& find_contract(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& c : contracts()) {
    if (c.name == name) return c;
    names.emplace_back(c.name);
  }
  fail_usage("verify", "no contract is called \"{}\"{}; hpcdl verify --contracts lists all", name,
             io::did_you_mean(name, names));
}

}  // namespace hpcdl::lab::verify
