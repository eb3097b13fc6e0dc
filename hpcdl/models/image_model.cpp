#include "hpcdl/models/image_model.h"

#include <cstring>
#include <variant>

#include "hpcdl/core/convert.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/models/bind.h"
#include "hpcdl/models/create.h"
#include "hpcdl/models/resnet.h"
#include "hpcdl/models/simple_cnn.h"
#include "hpcdl/ops/add/add.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/cross_entropy/smooth.h"
#include "hpcdl/ops/top1/top1.h"

namespace hpcdl::models {
namespace {

std::variant<SimpleCnn, ResNet> build(const ImageConfig& c) {
  if (c.family == ImageFamily::simple_cnn) return SimpleCnn(c);
  return ResNet(c);
}

ImageConfig resolved(ImageConfig c) {
  c.resolve();
  return c;
}

}  // namespace

struct ImageModel::Impl {
  ImageConfig config;
  std::variant<SimpleCnn, ResNet> model;

  explicit Impl(ImageConfig c) : config(resolved(c)), model(build(config)) {}

  std::unique_ptr<StateTable> table() {
    std::vector<nn::Param*> params;
    std::visit(
        [&](auto& m) {
          nn::for_each_param(m, [&](const std::string& name, nn::Param& p) {
            p.name = name;
            params.push_back(&p);
          });
        },
        model);
    return std::make_unique<StateTable>(std::move(params));
  }
};

ImageModel::ImageModel(std::unique_ptr<Impl> impl) : Trainable(impl->table()), impl_(std::move(impl)) {}
ImageModel::ImageModel(ImageModel&&) noexcept = default;
ImageModel& ImageModel::operator=(ImageModel&&) noexcept = default;
ImageModel::~ImageModel() = default;

ImageModel ImageModel::create(ImageConfig config, std::optional<std::uint64_t> seed, bool gradients, Values values) {
  ImageModel model(std::make_unique<Impl>(config));
  models::create(*model.state_, seed, gradients, values);
  return model;
}

ImageModel ImageModel::open(const std::filesystem::path& folder, bool gradients) {
  ImageModel model(std::make_unique<Impl>(read_image_config(folder)));
  const FolderWeights files(folder);
  const Binder binder(files);
  model.state_->allocate(gradients);
  for (const auto& p : model.state_->parameters()) binder.copy(p.name, p.host);
  for (const auto& b : model.state_->buffers()) {
    if (b.memory.dtype() != DType::i64) {
      binder.copy(b.name, b.host);
    } else if (files.contains(b.name)) {  // older torch files lack them
      const View v = files.at(b.name);
      require(v.spec() == b.memory.spec(), "model", "{}: expected {} to be one I64, the file holds {}", folder.string(),
              b.name, to_string(v.spec()));
      std::memcpy(b.host.data(), v.data(), sizeof(std::int64_t));
    }
  }
  Pool pool(1);
  model.state_->store(Stream(pool));
  return model;
}

const ImageConfig& ImageModel::config() const { return impl_->config; }

std::vector<InputSpec> ImageModel::inputs(std::int64_t batch, std::int64_t, const nn::ForwardOptions& o) const {
  const auto size = impl_->config.size;
  const Spec ids{{batch}, DType::i32}, weights{{batch}, DType::f32};
  std::vector<InputSpec> list{{"images", {{batch, size, size, 3}, DType::f32}}, {"targets", ids, SlotRole::targets}};
  if (o.mixup) list.insert(list.end(), {{"mix", weights}, {"targets_b", ids}, {"mix_b", weights}});
  return list;
}

Var ImageModel::logits(Graph& g, const Var& images, const nn::ForwardOptions& o) const {
  require(images.shape().rank() == 4 && images[3] == 3 && images.dtype() == DType::f32, "model",
          "images must be F32 (N, H, W, 3), got {}", to_string(images.spec()));
  state_->bind(g);
  const auto size = impl_->config.size;
  require(impl_->config.family == ImageFamily::resnet18 || (images[1] == size && images[2] == size), "model",
          "this model was made for images of {} x {}, got {}", size, size, to_string(images.spec()));
  const Var y = std::visit([&](const auto& m) { return m.logits(cast(images, o.compute), o); }, impl_->model);
  Graph::Scope scope(g, "head");
  return cast(y, DType::f32);
}

Var ImageModel::loss(Graph& g, const Var& images, const Var& targets, const nn::ForwardOptions& o) const {
  const Var in[] = {images, targets};
  require(!o.mixup, "model", "mixtures have targets and weights of their own: pass() takes them");
  return pass(g, in, o).loss;
}

PassOutputs ImageModel::pass(Graph& g, std::span<const Var> in, const nn::ForwardOptions& o) const {
  const Var y = logits(g, in[0], o);
  Graph::Scope scope(g, "head");
  const SmoothCrossEntropy::Args smooth{.label_smoothing = o.label_smoothing};
  const Var correct = top1(y, in[1]);
  if (!o.mixup) return {cross_entropy(y, in[1], smooth)[0], correct};
  return {add(cross_entropy(y, in[1], smooth, in[2])[0], cross_entropy(y, in[3], smooth, in[4])[0]), correct};
}

void ImageModel::save(const std::filesystem::path& folder, DType dtype) const {
  if (!device().is_cuda()) {
    Pool pool(1);
    fetch(Stream(pool));
  }
  std::vector<io::NamedSpec> specs;
  for (const auto& p : state_->parameters()) specs.push_back({p.name, {p.host.shape(), dtype}});
  for (const auto& b : state_->buffers()) specs.push_back({b.name, b.host.spec()});
  std::filesystem::create_directories(folder);
  io::TensorFolderWriter writer(folder, specs);
  for (const auto& p : state_->parameters()) {
    OwnedTensor t({p.host.shape(), dtype});
    convert_elements(t.tensor, p.host);
    writer.write(p.name, t.tensor);
  }
  for (const auto& b : state_->buffers()) writer.write(b.name, b.host);
  writer.commit();
  write_image_config(folder, impl_->config);
}

}  // namespace hpcdl::models
