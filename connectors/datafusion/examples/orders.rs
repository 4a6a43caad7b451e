//! Writes orders to a stream, and sums them up.

use datafusion::prelude::*;

#[tokio::main]
async fn main() -> datafusion::error::Result<()> {
    let broker = std::env::args().nth(1);
    let broker = broker.unwrap_or("localhost:7600".to_owned());
    let context = SessionContext::new();
    kera_datafusion::register(&context);
    let create = format!(
        "CREATE EXTERNAL TABLE orders (who VARCHAR, amount INT) \
         STORED AS KERA LOCATION 'kera://{broker}/orders' OPTIONS ('value.format' 'json')"
    );
    context.sql(&create).await?;
    let insert = "INSERT INTO orders (key, who, amount) \
                  VALUES ('ann', 'ann', 3), ('bob', 'bob', 7), ('ann', 'ann', 5)";
    context.sql(insert).await?.collect().await?;
    context
        .table("orders")
        .await?
        .aggregate(
            vec![col("who")],
            vec![datafusion::functions_aggregate::expr_fn::sum(col("amount")).alias("amount")],
        )?
        .sort(vec![col("who").sort(true, false)])?
        .show()
        .await
}
