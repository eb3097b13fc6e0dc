#include "hpcdl/models/export_folder.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/copy_stored.h"
#include "hpcdl/io/dcp/dcp_writer.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/model_folder.h"
#include "hpcdl/models/hf_config.h"
#include "hpcdl/models/image_model.h"
#include "hpcdl/nn/fp8.h"
#include "hpcdl/quant/staged_folder.h"

namespace hpcdl::models {

namespace fs = io::fs;

namespace {

void write_config_of(const fs::path& from, const fs::path& to, DType dtype) {
  if (is_image_config(io::read_json(io::config_of_model(from)))) {
    io::write_file_atomic(to / "config.json", io::read_file(from / "config.json"));  // names no type
    return;
  }
  auto config = read_hf_config(from);
  if (dtype != DType::none) config.dtype = dtype;
  write_hf_config(to, config);
}

}  // namespace

ExportReport export_folder(const io::StoredCheckpoint& from, const fs::path& out, const ExportOptions& options) {
  ExportReport report;
  std::vector<const io::StoredTensor*> tensors;
  std::vector<io::NamedSpec> specs;
  for (const auto& t : from.model()) {
    if (nn::is_fp8_history(t.name)) continue;  // of no use outside of its run
    tensors.push_back(&t);
    const bool converts = options.dtype != DType::none && is_float(t.whole.dtype);
    specs.push_back({t.name, {t.whole.shape, converts ? options.dtype : t.whole.dtype}});
    ++report.tensors, report.bytes += specs.back().spec.bytes();
  }
  const auto& folder = from.info().path;
  quant::StagedFolder staged(out);
  write_config_of(folder, staged.path(), options.dtype);
  const auto write = [&](auto&& copy) {
    std::int64_t done = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto& [name, spec] = specs[i];
      if (options.progress) options.progress(static_cast<double>(done) / static_cast<double>(report.bytes), name);
      copy(*tensors[i], name, spec.dtype);
      done += spec.bytes();
    }
  };
  if (options.dcp) {
    io::DcpWriter writer(staged.path(), specs);
    write([&](const io::StoredTensor& t, const std::string&, DType dtype) {
      io::for_each_converted(t, dtype, [&](const View& chunk) { writer.append(chunk); });
    });
    writer.commit();
  } else {
    io::TensorFolderWriter writer(staged.path(), specs);
    write([&](const io::StoredTensor& t, const std::string& name, DType dtype) {
      io::copy_stored(t, writer, name, dtype);
    });
    writer.commit();
  }
  for (const char* name : quant::kCompanions) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) io::write_file_atomic(staged.path() / name, io::read_file(folder / name));
  }
  staged.commit();
  return report;
}

}  // namespace hpcdl::models
