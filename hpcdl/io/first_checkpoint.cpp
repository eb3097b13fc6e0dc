#include "hpcdl/io/first_checkpoint.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/checkpoint_state.h"

namespace hpcdl::io {

void write_first_checkpoint(const fs::path& folder, const TrainState& state, std::int64_t serial,
                            const std::vector<NamedSpec>& model, const WriteTensors& write,
                            const CheckpointContent& content) {
  TensorFolderWriter writer(folder, model, content.max_file_bytes);
  const auto checksums = write(writer);
  writer.commit();
  Json entries = Json::object();
  for (const auto& t : model) entries[t.name] = {{"spec", to_string(t.spec)}, {"crc32c", checksums.at(t.name)}};
  finish_checkpoint(folder, state, serial, 1, content, {{"model", std::move(entries)}, {"optimizer", Json::object()}});
}

}  // namespace hpcdl::io
