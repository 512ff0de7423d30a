//! Pictures as PNG, drawn from the same SVG with a font that comes along.

use std::sync::Arc;

use resvg::{tiny_skia, usvg};

/// The largest side of a picture in pixels.
const SIDE_MAX: f32 = 16_000.0;

/// Draws an SVG picture, `scale` pixels to the unit.
pub(crate) fn render(svg: &str, scale: f32) -> Result<Vec<u8>, String> {
    let mut options = usvg::Options {
        font_family: "Ubuntu".to_owned(),
        ..usvg::Options::default()
    };
    let fonts = Arc::make_mut(&mut options.fontdb);
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    fonts.load_font_data(epaint_default_fonts::HACK_REGULAR.to_vec());
    fonts.set_sans_serif_family("Ubuntu");
    fonts.set_serif_family("Ubuntu");
    fonts.set_monospace_family("Hack");
    let tree = usvg::Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size();
    let scale = scale.min(SIDE_MAX / size.width().max(size.height()));
    let (width, height) = (size.width() * scale, size.height() * scale);
    let mut picture = tiny_skia::Pixmap::new(width.ceil() as u32, height.ceil() as u32)
        .ok_or("the picture has no size")?;
    picture.fill(tiny_skia::Color::WHITE);
    let transform = tiny_skia::Transform::from_scale(scale, scale);
    resvg::render(&tree, transform, &mut picture.as_mut());
    picture.encode_png().map_err(|error| error.to_string())
}
