use super::*;

#[test]
fn keys_rise_so_that_the_search_finds_them() {
    assert!(SHAPES.is_sorted_by_key(|shape| shape.api_key));
    assert_eq!(shape(3).map(|shape| shape.name), Some("Metadata"));
    assert!(shape(34).is_none());
    assert!(shape(-1).is_none());
}

#[test]
fn ranges_are_ranges_and_tags_are_flexible() {
    fn check(shape: &Shape, fields: &[Field]) {
        for field in fields {
            assert!(field.from <= field.until, "{} {}", shape.name, field.name);
            if field.tag.is_some() {
                assert!(shape.flexible <= field.from.max(shape.flexible));
            }
            match field.kind {
                Kind::Struct(inner) | Kind::OptionalStruct(inner) => check(shape, inner),
                Kind::Array {
                    of: Kind::Struct(inner),
                    ..
                } => check(shape, inner),
                _ => {}
            }
        }
    }
    for shape in SHAPES {
        assert!(shape.min <= shape.max && shape.flexible >= 0);
        check(shape, shape.fields);
    }
}
