use super::*;

fn checked(api_key: i16, version: i16, body: &[u8]) -> Result<(), WalkError> {
    walk(api_key, version, body, &Limits::default())
}

#[test]
fn a_number_of_topics_that_are_not_there_is_refused() {
    // Null transactional id, acks, timeout, then two billion topics: 12 bytes.
    let produce = [0xff, 0xff, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff];
    assert!(matches!(
        checked(0, 3, &produce),
        Err(WalkError::TooShort {
            field: "topic_data",
            at: 12,
            left: 0,
            ..
        })
    ));
    let metadata = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(matches!(
        checked(3, 9, &metadata),
        Err(WalkError::TooShort {
            field: "topics",
            ..
        })
    ));
}

#[test]
fn null_is_refused_where_it_has_no_place() {
    // All topics, which is null, of Metadata v1.
    assert_eq!(checked(3, 1, &[0xff; 4]), Ok(()));
    // The groups of DescribeGroups v0.
    assert_eq!(
        checked(15, 0, &[0xff; 4]),
        Err(WalkError::Null {
            field: "groups",
            at: 0
        })
    );
    assert_eq!(
        checked(10, 0, &[0xff, 0xff]),
        Err(WalkError::Null {
            field: "key",
            at: 0
        })
    );
    assert_eq!(
        checked(10, 0, &[0xff, 0xfe]),
        Err(WalkError::BadLength {
            field: "key",
            at: 0,
            length: -2
        })
    );
}

#[test]
fn texts_are_utf8_and_short() {
    assert_eq!(checked(10, 0, &[0, 2, 0xc3, 0xa4]), Ok(()));
    assert_eq!(
        checked(10, 0, &[0, 2, 0xc3, 0x28]),
        Err(WalkError::NotUtf8 {
            field: "key",
            at: 2
        })
    );
    let mut long = vec![0x81, 0x80, 0x02];
    long.resize(3 + 0x8000 + 2, b'a');
    assert!(matches!(
        checked(10, 3, &long),
        Err(WalkError::BadLength { length: 0x8000, .. })
    ));
}

#[test]
fn numbers_of_variable_length_end_in_time() {
    for body in [[0xff; 6], [0xff, 0xff, 0xff, 0xff, 0x10, 0]] {
        assert!(matches!(
            checked(3, 9, &body),
            Err(WalkError::BadNumber {
                field: "topics",
                at: 0
            })
        ));
    }
}

#[test]
fn elements_and_tags_are_counted_over_the_whole_request() {
    let limits = Limits {
        elements: 3,
        unknown_tags: 2,
    };
    // Two resources with one key each: four elements.
    let resource = [2, 1, 2, 2, b'k', 0];
    let body = [&[3][..], &resource, &resource, &[0, 0, 0]].concat();
    assert_eq!(checked(32, 4, &body), Ok(()));
    assert!(matches!(
        walk(32, 4, &body, &limits),
        Err(WalkError::TooMany {
            field: "configuration_keys",
            count: 4,
            limit: 3,
            ..
        })
    ));
    let tags = |count: u8| {
        let mut body = vec![0, 1, 1, count];
        (0..count).for_each(|tag| body.extend([tag, 1, 7]));
        body
    };
    assert_eq!(walk(3, 13, &tags(2), &limits), Ok(()));
    assert!(matches!(
        walk(3, 13, &tags(3), &limits),
        Err(WalkError::TooMany {
            what: "unknown tagged fields",
            ..
        })
    ));
}

#[test]
fn a_known_tag_is_as_long_as_it_says_and_of_its_version() {
    let fetch = |tags: &[u8]| {
        let mut body = vec![0; 4 + 4 + 4 + 1 + 4 + 4];
        // No topics, none forgotten, an empty rack.
        body.extend([1, 1, 1]);
        body.extend(tags);
        body
    };
    let replica = |length: u8| {
        let mut tag = vec![1, 1, length];
        tag.extend([0; 13]);
        tag
    };
    assert_eq!(checked(1, 15, &fetch(&replica(13))), Ok(()));
    assert!(matches!(
        checked(1, 15, &fetch(&replica(12))),
        Err(WalkError::BadTag { tag: 1, .. })
    ));
    let mut older = vec![0; 4];
    older.extend(fetch(&replica(13)));
    assert!(matches!(
        checked(1, 14, &older),
        Err(WalkError::BadTag { tag: 1, .. })
    ));
    // The cluster's id.
    assert_eq!(checked(1, 15, &fetch(&[1, 0, 3, 3, b'i', b'd'])), Ok(()));
    assert!(checked(1, 15, &fetch(&[1, 0, 3, 0x7f, b'i', b'd'])).is_err());
}

#[test]
fn a_structure_that_may_be_missing_says_so() {
    let body = |present: u8, rest: &[u8]| {
        let mut body = vec![1, 0, 0, 0, 9, present];
        body.extend(rest);
        body
    };
    assert_eq!(checked(75, 0, &body(0xff, &[0])), Ok(()));
    let cursor = [2, b't', 0, 0, 0, 1, 0, 0];
    assert_eq!(checked(75, 0, &body(1, &cursor)), Ok(()));
    assert!(checked(75, 0, &body(0, &[0])).is_err());
}

#[test]
fn what_lies_behind_a_request_is_left_alone() {
    assert_eq!(checked(12, 0, &[0, 0, 0, 0, 0, 0, 0, 0, 9, 9]), Ok(()));
}

#[test]
fn what_is_not_served_is_not_walked() {
    assert_eq!(checked(34, 0, &[]), Err(WalkError::UnknownApi(34)));
    assert_eq!(
        checked(0, 2, &[]),
        Err(WalkError::UnknownVersion {
            api_key: 0,
            version: 2
        })
    );
    assert_eq!(checked(18, 0, &[]), Ok(()));
}
