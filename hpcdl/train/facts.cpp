#include "hpcdl/train/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "hpcdl/core/error.h"
#include "hpcdl/device.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/simd/isa.h"
#include "hpcdl/train/run_table.h"

namespace hpcdl::train {
namespace {

std::vector<parallel::Fact> fields(RunConfig& config, std::string_view section) {
  const auto table = table_of(config);
  std::vector<parallel::Fact> facts;
  for (const auto& field : table.fields())
    if (!field.per_rank && field.key.starts_with(section)) facts.push_back({field.key, field.toml()});
  return facts;
}

}  // namespace

parallel::Fact instruction_set() {
  return {"the instruction set (HPCDL_ISA)", std::string(simd::isa_name(simd::active_isa()))};
}

std::vector<parallel::Fact> config_facts(RunConfig& config) {
  auto facts = fields(config, "");
  facts.push_back({"the kind of train.device", device_from_name(config.train.device).is_cuda() ? "cuda" : "cpu"});
  facts.push_back(instruction_set());
  return facts;
}

std::vector<parallel::Fact> model_facts(RunConfig& config) { return fields(config, "model."); }

void expect_same_config(RunConfig& config, const comm::Group& world, const std::vector<parallel::Fact>& more) {
  if (world.size() == 1) return;
  auto facts = more;
  const auto of_config = config_facts(config);
  facts.insert(facts.end(), of_config.begin(), of_config.end());
  parallel::expect_agreement(world, facts);
}

std::uint32_t file_checksum(const std::filesystem::path& path) {
  constexpr std::int64_t kBlock = 64 << 10, kBlocks = 4096;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::int64_t>(in.tellg());
  require(in.good(), "data", "{}: cannot be read", path.string());
  auto sum = io::crc32c(std::to_string(size));
  std::vector<char> block(static_cast<std::size_t>(kBlock));
  const auto blocks = std::min((size + kBlock - 1) / kBlock, kBlocks);
  const auto last = std::max<std::int64_t>(size - kBlock, 0);
  for (std::int64_t i = 0; i < blocks; ++i) {
    const auto at = blocks < kBlocks ? i * kBlock : last / (blocks - 1) * i;
    in.seekg(at);
    in.read(block.data(), std::min(kBlock, size - at));
    require(in.gcount() > 0, "data", "{}: cannot be read", path.string());
    sum = io::crc32c(std::string_view(block.data(), static_cast<std::size_t>(in.gcount())), sum);
  }
  return sum;
}

}  // namespace hpcdl::train
